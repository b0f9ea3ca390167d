"""What a call within a function that JAX compiles costs, next to a call that does nothing and to psum over gloo.

    rankwise run -n 2 benchmarks/jax_calls.py [--psum]

Microseconds: of a call of a compiled function with one operation in it, and of each further operation inside.
"""

from __future__ import annotations

import argparse
import socket
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rankwise as rw
from rankwise.frontends.jax.calls import Call, What, bind
from rankwise.jax import all_reduce

INSIDE = 50  # operations within a function
SIZES = [8, 1 << 10, 64 << 10, 1 << 20, 16 << 20]


def best(function: Callable[[Any], Any], x: Any, group: rw.Group) -> float:
    """Seconds of a call: the minimum over batches, of the slowest rank."""
    jax.block_until_ready(function(x))
    found = float("inf")
    for _ in range(10):
        calls = max(2, min(100, (1 << 22) // x.nbytes))
        group.barrier()
        start = time.perf_counter()
        for _ in range(calls):
            jax.block_until_ready(function(x))
        found = min(found, group.all_reduce((time.perf_counter() - start) / calls, "max"))
    return found


def repeated(operation: Callable[[Any], Any], times: int) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        for _ in range(times):
            x = operation(x)
        return x

    return jax.jit(function)


def alone(operation: Callable[[Any], Any], length: int, group: rw.Group) -> list[float]:
    """Seconds of a function with one operation, and of each further one inside."""
    x = jnp.zeros(length, jnp.float32)
    one, many = (best(repeated(operation, times), x, group) for times in (1, INSIDE))
    return [one, (many - one) / (INSIDE - 1)]


def with_gloo(length: int, group: rw.Group) -> list[float]:
    """The same of psum, over the processes of jax.distributed."""
    mesh = jax.sharding.Mesh(jax.devices(), "ranks")
    rows = jax.sharding.PartitionSpec("ranks")
    sharding = jax.sharding.NamedSharding(mesh, rows)
    x = jax.make_array_from_process_local_data(sharding, np.zeros((1, length), np.float32))

    def function(times: int) -> Callable[[Any], Any]:
        inner = repeated(lambda x: jax.lax.psum(x, "ranks"), times)
        return jax.jit(jax.shard_map(inner, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False))

    one, many = (best(function(times), x, group) for times in (1, INSIDE))
    return [one, (many - one) / (INSIDE - 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--psum", action="store_true", help="also measure psum, over jax.distributed with gloo")
    options = parser.parse_args()
    group = rw.init()
    if options.psum:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        address = group.broadcast_object(f"localhost:{free_port()}")
        jax.distributed.initialize(address, group.world_size, group.rank)
    if group.rank == 0:
        print("us:  a call that does nothing, and each further one; all_reduce; psum of gloo", flush=True)
    for size in SIZES:
        length = size // 4
        nothing = lambda x: bind(Call(What.NOTHING, group), x)[0]  # noqa: E731
        columns = alone(nothing, length, group) + alone(all_reduce, length, group)
        if options.psum:
            columns += with_gloo(length, group)
        if group.rank == 0:
            print(f"{size:>9} B" + "".join(f"{1e6 * seconds:11.2f}" for seconds in columns), flush=True)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        port: int = one.getsockname()[1]
        return port


if __name__ == "__main__":
    main()
