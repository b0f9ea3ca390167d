"""A roll call for programs that stay on MPI or torch.distributed. Nothing of it is imported unless a program is started
with `python -m rankwise.watch`.
"""
