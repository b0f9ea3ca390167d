"""A roll call for programs that stay on MPI or torch.distributed: `python -m rankwise.watch program.py`.

docs/how-to/watch.md says what it does. Nothing of it is imported unless a program is started with it.
"""
