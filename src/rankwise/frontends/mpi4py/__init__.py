"""mpi4py's interface on rankwise's engine: `from rankwise.mpi4py import MPI`. It loads nothing by itself."""
