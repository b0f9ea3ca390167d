"""emcee's sampler on schwimmbad's pool of MPI ranks."""

import sys
import time

import emcee
import numpy as np
from schwimmbad import MPIPool


def log_probability(x: np.ndarray) -> float:
    return float(-0.5 * np.sum(x * x))


with MPIPool() as pool:
    if not pool.is_master():
        pool.wait()
        sys.exit(0)
    np.random.seed(1)
    sampler = emcee.EnsembleSampler(32, 5, log_probability, pool=pool)
    begun = time.perf_counter()
    sampler.run_mcmc(np.random.randn(32, 5), 100)
    print(f"sampled in {time.perf_counter() - begun:.2f} s")
    print(f"result: {sampler.get_chain().sum():.12f}")
