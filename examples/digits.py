"""Train a small neural network on handwritten digits, data-parallel, in plain NumPy.

    python examples/digits.py                          alone: one rank
    rankwise run -n 2 examples/digits.py               two ranks, the same losses

Every rank holds the whole network, started from rank 0's numbers (broadcast). Each step takes one
global batch, the same whatever the number of ranks, and splits its rows over the ranks. A rank
computes the loss and the gradient of its own rows, summed, not averaged; `all_reduce` adds up these
sums over the ranks, and every rank divides by the size of the global batch. So every rank takes
the same step, the one that a single rank would take, even if the rows do not split evenly or a
rank has none. At the end rank 0 checks this by training alone on the same batches.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import sklearn.datasets
from numpy.typing import NDArray
from tqdm import tqdm

import rankwise as rw

matplotlib.use("Agg")  # pictures to files, no screen needed
from matplotlib import pyplot

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

PIXELS, CLASSES = 64, 10  # images of 8 x 8 pixels, digits 0 to 9
MOMENTUM = 0.9


class Network:
    """pixels -> tanh hidden layer -> softmax over the ten digits.

    All parameters are in one flat vector, `flat`, and the layers are views of it, so one broadcast
    sends them all and one all_reduce adds up all gradients.
    """

    def __init__(self, hidden: int) -> None:
        self.shapes = [(PIXELS, hidden), (hidden,), (hidden, CLASSES), (CLASSES,)]
        self.flat: Floats = np.zeros(sum(int(np.prod(shape)) for shape in self.shapes))
        self.w1, self.b1, self.w2, self.b2 = self.layers(self.flat)
        random = np.random.default_rng(0)
        for weights in (self.w1, self.w2):
            weights[:] = random.normal(0.0, 1.0 / np.sqrt(len(weights)), weights.shape)

    def layers(self, flat: Floats) -> list[Floats]:
        """The layers of a flat vector of parameters, or of their gradients, as views of it."""
        ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes])
        parts = np.split(flat, ends[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def scores(self, images: Floats) -> tuple[Floats, Floats]:
        """The hidden layer, (n, hidden), and a score per digit, (n, 10), of n images."""
        hidden = np.tanh(images @ self.w1 + self.b1)
        return hidden, hidden @ self.w2 + self.b2

    def loss_and_gradient(self, images: Floats, labels: Integers, gradient: Floats) -> float:
        """The cross-entropy summed over the images; writes its gradient with respect to `flat` into `gradient`."""
        hidden, scores = self.scores(images)
        scores -= scores.max(axis=1, keepdims=True)
        chances = np.exp(scores)
        chances /= chances.sum(axis=1, keepdims=True)
        rows = np.arange(len(labels))
        loss = -np.log(chances[rows, labels]).sum()

        by_scores = chances  # d loss / d scores = chances - [1 at the right digit]
        by_scores[rows, labels] -= 1.0
        by_hidden = (by_scores @ self.w2.T) * (1.0 - hidden**2)
        w1, b1, w2, b2 = self.layers(gradient)
        w1[:], b1[:] = images.T @ by_hidden, by_hidden.sum(axis=0)
        w2[:], b2[:] = hidden.T @ by_scores, by_scores.sum(axis=0)
        return float(loss)

    def predict(self, images: Floats) -> Integers:
        """The most likely digit of each image."""
        likeliest: Integers = self.scores(images)[1].argmax(axis=1)
        return likeliest


def load_digits() -> tuple[Floats, Integers, Floats, Integers]:
    """Images (n, 64) with pixels in 0..1 and labels (n,): four fifths to train on, the rest to test."""
    images, labels = sklearn.datasets.load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = images[order] / 16.0, labels[order].astype(np.int64)
    first_test = len(images) * 4 // 5
    return images[:first_test], labels[:first_test], images[first_test:], labels[first_test:]


def my_part(rows: NDArray[Any], group: rw.Group) -> NDArray[Any]:
    """This rank's share of the rows: as even as possible, and possibly none."""
    mine: NDArray[Any] = np.array_split(rows, group.world_size)[group.rank]
    return mine


def train(
    images: Floats, labels: Integers, args: argparse.Namespace, group: rw.Group, *, quiet: bool = False
) -> tuple[Network, Floats]:
    """Train on the ranks of `group`; the network and the loss at each step, the same on every rank."""
    network = Network(args.hidden)
    group.broadcast(network.flat)
    velocity = np.zeros_like(network.flat)
    sums = np.zeros(network.flat.size + 1)  # the gradient, and in the last place the loss
    losses = []
    epochs = tqdm(range(args.epochs), desc="training", unit="epoch", disable=quiet or group.rank != 0)
    for epoch in epochs:
        order = np.random.default_rng([1, epoch]).permutation(len(images))  # seeded: the same on every rank
        for start in range(0, len(order), args.batch):
            batch = order[start : start + args.batch]
            mine = my_part(batch, group)
            sums[-1] = network.loss_and_gradient(images[mine], labels[mine], sums[:-1])
            group.all_reduce(sums)
            sums /= len(batch)
            velocity = MOMENTUM * velocity - args.lr * sums[:-1]
            network.flat += velocity
            losses.append(float(sums[-1]))
        epochs.set_postfix(loss=f"{losses[-1]:.4f}", refresh=False)
    return network, np.array(losses)


def draw(losses: Floats, confusion: Integers, folder: Path) -> tuple[Path, Path]:
    """Save the loss curve and the confusion matrix as PNG files; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    loss_png, confusion_png = folder / "loss.png", folder / "confusion.png"

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.semilogy(np.arange(1, len(losses) + 1), losses, linewidth=1)
    axes.set(title="Training loss", xlabel="step", ylabel="mean cross-entropy of the global batch")
    figure.savefig(loss_png, dpi=120)

    figure, axes = pyplot.subplots(figsize=(6, 5.5), layout="constrained")
    axes.imshow(confusion, cmap="Blues")
    for (true, said), number in np.ndenumerate(confusion):
        if number:
            colour = "white" if number > confusion.max() / 2 else "black"
            axes.text(said, true, str(number), ha="center", va="center", color=colour)
    digits = range(CLASSES)
    axes.set(title="Test images", xlabel="digit predicted", ylabel="true digit", xticks=digits, yticks=digits)
    figure.savefig(confusion_png, dpi=120)
    return loss_png, confusion_png


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits, data-parallel.")
    parser.add_argument("--epochs", type=int, default=20, help="passes over the training images")
    parser.add_argument("--batch", type=int, default=64, help="images in a global batch")
    parser.add_argument("--lr", type=float, default=0.1, help="learning rate")
    parser.add_argument("--hidden", type=int, default=64, help="width of the hidden layer")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the pictures")
    args = parser.parse_args()

    group = rw.init()
    images, labels, test_images, test_labels = load_digits()
    if group.rank == 0:
        ranks = "1 rank" if group.world_size == 1 else f"{group.world_size} ranks"
        print(f"{len(images)} images to train on, {len(test_images)} to test, {ranks}", flush=True)
    network, losses = train(images, labels, args, group)
    predicted = group.all_gather_v(network.predict(my_part(test_images, group)))

    alone = group.subgroup([0])  # a group of rank 0 only; None on the other ranks
    if alone is None:
        return
    if group.world_size > 1:
        reference, expected = train(images, labels, args, alone, quiet=True)
        np.testing.assert_allclose(losses, expected, rtol=1e-6, atol=1e-12)
        np.testing.assert_array_equal(predicted, reference.predict(test_images))
        difference = np.abs(losses - expected).max()
        print(f"matches the one-rank run: largest loss difference {difference:.1e}, the same predictions")
    confusion = np.zeros((CLASSES, CLASSES), np.int64)
    np.add.at(confusion, (test_labels, predicted), 1)
    right = int(np.trace(confusion))
    print(f"loss {losses[0]:.4f} at the first step, {losses[-1]:.4f} at the last")
    print("saved", " and ".join(str(path) for path in draw(losses, confusion, args.out)))
    print(f"test accuracy {100 * right / len(test_labels):.2f} % ({right} of {len(test_labels)})")


if __name__ == "__main__":
    main()
