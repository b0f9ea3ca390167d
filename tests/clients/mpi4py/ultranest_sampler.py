"""ultranest's nested sampling, whose ranks share the points to evaluate."""

import logging

import numpy as np
from mpi4py import MPI
from ultranest import ReactiveNestedSampler

logging.getLogger("ultranest").setLevel(logging.WARNING)
np.random.seed(1 + MPI.COMM_WORLD.rank)


def log_likelihood(points: np.ndarray) -> np.ndarray:
    return -0.5 * (((points - 0.5) / 0.1) ** 2).sum(axis=1)


sampler = ReactiveNestedSampler(["a", "b"], log_likelihood, lambda cube: cube, vectorized=True)
found = sampler.run(min_num_live_points=50, dlogz=0.5, max_iters=300, show_status=False, viz_callback=False)
if MPI.COMM_WORLD.rank == 0:
    print(f"result: {found['logz']:.8f} {found['ncall']}")
