"""Communication inside functions that JAX compiles, on the CPU.

    import jax, jax.numpy as jnp, rankwise as rw
    from rankwise.jax import all_reduce

    group = rw.init()

    @jax.jit
    def norm(x):
        return jnp.sqrt(all_reduce((x * x).sum()))

    norm(jnp.ones(1000))

Each function returns a new array, and may stand in `jit`, `grad`, `vmap`, loops and branches. The ranks make their
calls in the order of the program: JAX neither merges, drops nor moves them. All ranks must trace the same calls. The
group is by default that of all ranks. docs/how-to/compiled.md says more.
"""

from __future__ import annotations

from rankwise.frontends.jax.calls import (
    all_gather,
    all_reduce,
    all_to_all,
    barrier,
    broadcast,
    reduce_scatter,
    sendrecv,
)

__all__ = ["all_gather", "all_reduce", "all_to_all", "barrier", "broadcast", "reduce_scatter", "sendrecv"]
