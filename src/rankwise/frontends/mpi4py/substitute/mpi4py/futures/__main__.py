"""`python -m mpi4py.futures program.py`: rank 0 runs the program, and the other ranks are its executors' workers."""

from rankwise.frontends.mpi4py.futures import main

main()
