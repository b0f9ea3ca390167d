"""A block-diagonal operator of pylops-mpi, applied forward and backward."""

import numpy as np
import pylops
import pylops_mpi
from mpi4py import MPI

comm = MPI.COMM_WORLD
block = pylops.MatrixMult(np.random.RandomState(comm.rank).randn(4, 3))
operator = pylops_mpi.MPIBlockDiag(ops=[block])
x = pylops_mpi.DistributedArray(global_shape=3 * comm.size)
x[:] = 1.0 + comm.rank
y = operator @ x
back, norm = (operator.H @ y).asarray(), y.norm()
if comm.rank == 0:
    print(f"result: {back.sum():.10f} {float(norm):.10f}")
