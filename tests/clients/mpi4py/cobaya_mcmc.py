"""cobaya's MCMC sampler, one chain on each rank."""

import numpy as np
from cobaya.run import run
from mpi4py import MPI

comm = MPI.COMM_WORLD
info = {
    "likelihood": {
        "gauss": {"external": lambda x, y: float(-0.5 * (x * x + y * y)), "input_params": ["x", "y"]},
    },
    "params": {name: {"prior": {"min": -5, "max": 5}, "ref": 0.5, "proposal": 1.0} for name in "xy"},
    # No chain comes to its first check of convergence, in which cobaya's ranks would wait for ever, on any MPI, for one
    # that has its last sample meanwhile.
    "sampler": {"mcmc": {"seed": 1, "max_samples": 200, "learn_proposal": False, "learn_every": 1000}},
    "debug": False,
}
_, sampler = run(info)
chain = sampler.products()["sample"]
sums = comm.gather(float(np.sum(chain["x"].to_numpy() * chain["weight"].to_numpy())))
if comm.rank == 0:
    print(f"result: {[round(each, 8) for each in sums]}")
