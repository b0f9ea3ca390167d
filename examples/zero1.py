"""Train the digits with a sharded optimizer (ZeRO stage 1), and check it against the unsharded one.

    rankwise run -n 2 examples/zero1.py

An optimizer keeps state for every parameter; Adam keeps two numbers. When every rank holds the whole
network, all n ranks keep the same state. So let each rank keep only the state of its shard of the
parameters (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter
Models", SC 2020):

    reduce_scatter    each rank receives the sum of all ranks' gradients, for its shard
    Adam              each rank updates its shard
    all_gather        every rank receives the updated shards of all

An all_reduce is these two collectives in succession, so sharding needs no more communication than an
all_reduce followed by a full update on every rank. Each sum adds the same terms in the same order, so
the parameters are the same, to the last bit. The example trains both ways and compares them. The
gradient is in registered memory (`group.empty`), where the ranks add it up in place.
"""

from __future__ import annotations

import argparse

import numpy as np

import rankwise as rw
from digits import Floats, Integers, Network, at_least_one, load_digits, my_part


class Adam:
    """Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, on a vector of parameters."""

    def __init__(self, parameters: Floats, rate: float) -> None:
        self.parameters, self.rate = parameters, rate
        self.mean, self.square = np.zeros_like(parameters), np.zeros_like(parameters)
        self.steps = 0

    @property
    def nbytes(self) -> int:
        return self.mean.nbytes + self.square.nbytes

    def step(self, gradient: Floats) -> None:
        """Update the parameters in place."""
        self.steps += 1
        self.mean += 0.1 * (gradient - self.mean)
        self.square += 0.001 * (gradient**2 - self.square)
        mean = self.mean / (1 - 0.9**self.steps)
        square = self.square / (1 - 0.999**self.steps)
        self.parameters -= self.rate * mean / (np.sqrt(square) + 1e-8)


def train(
    images: Floats, labels: Integers, args: argparse.Namespace, group: rw.Group, sharded: bool
) -> tuple[Network, float, int]:
    """The network, the last step's loss (the mean over the global batch), and the optimizer's bytes on this rank."""
    network = Network(args.hidden)
    network.randomise(np.random.default_rng(args.seed))  # the same numbers on every rank
    gradient: Floats = group.empty(network.flat.size)
    adam = Adam(my_part(network.flat, group).copy() if sharded else network.flat, args.lr)
    loss = 0.0
    batches = np.random.default_rng(args.seed + 1)  # seeded: every rank draws the same batches
    for _ in range(args.epochs):
        order = batches.permutation(len(images))
        for start in range(0, len(order), args.batch):
            batch = order[start : start + args.batch]
            mine = my_part(batch, group)
            loss = network.loss_and_gradient(images[mine], labels[mine], gradient) / len(batch)
            if sharded:
                adam.step(group.reduce_scatter(gradient) / len(batch))
                group.all_gather_v(adam.parameters, out=network.flat)
            else:
                group.all_reduce(gradient)
                adam.step(gradient / len(batch))
    return network, group.all_reduce(loss), adam.nbytes


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the digits with a sharded optimizer (ZeRO stage 1).")
    parser.add_argument("--epochs", type=at_least_one, default=10, help="passes over the training images")
    parser.add_argument("--batch", type=at_least_one, default=64, help="images in a global batch")
    parser.add_argument("--lr", type=float, default=0.003, help="learning rate")
    parser.add_argument("--hidden", type=at_least_one, default=64, help="width of the hidden layer")
    parser.add_argument("--seed", type=int, default=0, help="seed of the split, the start and the batches")
    args = parser.parse_args()

    group = rw.init()
    images, labels, test_images, test_labels = load_digits(args.seed)
    whole, whole_loss, whole_bytes = train(images, labels, args, group, sharded=False)
    network, loss, nbytes = train(images, labels, args, group, sharded=True)
    np.testing.assert_array_equal(network.flat, whole.flat)  # bit for bit
    assert loss == whole_loss
    kept = group.all_gather(nbytes).tolist()

    if group.rank == 0:
        print(f"unsharded, every rank holds Adam's state of all parameters: {whole_bytes} bytes each")
        print(f"sharded, each rank holds its shard's: {', '.join(map(str, kept))} bytes")
        right = int((network.predict(test_images) == test_labels).sum())
        print("both runs have the same parameters, bit for bit")
        print(f"loss {loss:.4f}, test accuracy {100 * right / len(test_labels):.2f} % ({right} of {len(test_labels)})")


if __name__ == "__main__":
    main()
