"""The training of digits.py with JAX: a step is one compiled function, its all_reduce included.

    python examples/jax_training.py                          alone: one rank
    rankwise run -n 2 examples/jax_training.py               two ranks, the same losses

JAX differentiates the loss of this rank's rows. The gradient and the loss are added up over the ranks within the
compiled step. At the end the losses are compared with those of digits.py, which has its gradient by hand, in NumPy.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rankwise as rw
from digits import MOMENTUM, Floats, Training, load_digits, my_part, options, train
from rankwise.jax import all_reduce

jax.config.update("jax_enable_x64", True)


def loss_of(layers: Any, images: Any, labels: Any) -> Any:
    """The cross-entropy, summed over the images."""
    w1, b1, w2, b2 = layers
    scores = jnp.tanh(images @ w1 + b1) @ w2 + b2
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), labels[:, None], axis=1).sum()


@partial(jax.jit, static_argnames="size")
def step(layers: Any, velocity: Any, images: Any, labels: Any, lr: float, size: int) -> Any:
    """One step, on a global batch of so many images of which this rank has these; the new state, and the loss."""
    loss, gradient = jax.value_and_grad(loss_of)(layers, images, labels)
    loss, *gradient = (all_reduce(mine) / size for mine in (loss, *gradient))
    velocity = [MOMENTUM * v - lr * g for v, g in zip(velocity, gradient, strict=True)]
    return [x + v for x, v in zip(layers, velocity, strict=True)], velocity, loss


def main() -> None:
    args = options("Train a small network on handwritten digits with JAX, data-parallel.").parse_args()
    group = rw.init()
    images, labels, _, _ = load_digits(args.seed)
    start = Training(images, labels, args)  # the same network and the same batches
    layers: Any = [jnp.array(layer) for layer in start.network.layers(start.network.flat)]
    velocity: Any = [jnp.zeros_like(layer) for layer in layers]
    losses: Floats = np.zeros_like(start.losses)
    for number in range(len(losses)):
        batch = start.batch(number)
        mine = my_part(batch, group)
        layers, velocity, loss = step(layers, velocity, images[mine], labels[mine], args.lr, len(batch))
        losses[number] = loss
    _, reference = train(images, labels, args, group, quiet=True)
    if group.rank == 0:
        print(f"loss {losses[0]:.4f} at the first step, {losses[-1]:.4f} at the last")
        np.testing.assert_allclose(losses, reference, rtol=1e-6)
        print(f"the losses are those of NumPy: largest difference {np.abs(losses - reference).max():.1e}")


if __name__ == "__main__":
    main()
