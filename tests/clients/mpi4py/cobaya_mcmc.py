"""cobaya's MCMC sampler, one chain on each rank."""

import numpy as np
from cobaya.run import run
from mpi4py import MPI

comm = MPI.COMM_WORLD


def sampled(**mcmc: object) -> object:
    """The sampler of one chain on each rank."""
    info = {
        "likelihood": {
            "gauss": {"external": lambda x, y: float(-0.5 * (x * x + y * y)), "input_params": ["x", "y"]},
        },
        "params": {name: {"prior": {"min": -5, "max": 5}, "ref": 0.5, "proposal": 1.0} for name in "xy"},
        "sampler": {"mcmc": {"seed": 1, "learn_proposal": False, **mcmc}},
        "debug": False,
    }
    return run(info)[1]


# No chain of this one comes to a check of convergence, in which cobaya's ranks would wait forever, on any MPI, for one
# that has its last sample meanwhile.
chain = sampled(max_samples=200, learn_every=1000).products()["sample"]
sums = comm.gather(float(np.sum(chain["x"].to_numpy() * chain["weight"].to_numpy())))
together = sampled(Rminus1_stop=0.3).converged
if comm.rank == 0:
    print(f"result: {[round(each, 8) for each in sums]} {together}")
