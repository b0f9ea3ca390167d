"""zeus's ensemble slice sampler on schwimmbad's pool of MPI ranks."""

import random
import sys

import numpy as np
import zeus
from schwimmbad import MPIPool


def log_probability(x: np.ndarray) -> float:
    return float(-0.5 * np.sum(x * x))


with MPIPool() as pool:
    if not pool.is_master():
        pool.wait()
        sys.exit(0)
    np.random.seed(1)
    random.seed(1)
    sampler = zeus.EnsembleSampler(10, 3, log_probability, pool=pool, verbose=False)
    sampler.run_mcmc(np.random.randn(10, 3), 50, progress=False)
    print(f"result: {sampler.get_chain().sum():.12f}")
