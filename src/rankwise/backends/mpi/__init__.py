"""mpi: any MPI, through mpi4py."""
