"""mpi4py.MPI, which is rankwise's."""

import sys

from rankwise.frontends.mpi4py import MPI

sys.modules[__name__] = MPI
