"""Train on handwritten digits while ranks are killed, and end with the same network all the same.

    rankwise run -n 4 --restarts 100 examples/elastic.py --kill-every 2      lost ranks are started again
    rankwise run -n 4 --keep-going examples/elastic.py --kill-every 2        the others go on without them

It trains the network of examples/digits.py by the same steps. What a step changes is in a State, which
each rank commits after the step. When a rank is killed, the others go back to the last step that all have
committed, with a replacement that finds its own commit, or without the lost rank. A step is the same on
any number of ranks, except for rounding, so rank 0 can check the result by training alone.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import numpy as np

import rankwise as rw
from digits import Integers, Training, check_against_one_rank, load_digits, my_part, options


def kill_this_rank_some_day(mean: float, safe: threading.Event) -> None:
    """Kill this process after a random time, on average `mean` seconds, unless `safe` is set by then."""

    def kill() -> None:
        if not safe.wait(random.expovariate(1 / mean)):
            os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()


def cost(resumption: rw.elastic.Resumption) -> str:
    lost = ", ".join(f"rank {rank} {how}" for rank, how in sorted(resumption.lost.items()))
    again = resumption.reached - resumption.resumed
    return (
        f"step {resumption.reached}: {lost}; after {resumption.seconds:.3f} s on from step {resumption.resumed}"
        f"{', one step again' if again else ''}"
    )


def main() -> None:
    parser = options("Train on handwritten digits while ranks are killed.")
    parser.add_argument("--kill-every", type=float, metavar="S", help="kill a rank every S seconds on average")
    parser.add_argument("--step-ms", type=float, default=5.0, help="as a larger network would take for a step")
    parser.set_defaults(epochs=60)
    args = parser.parse_args()

    images, labels, test_images, test_labels = load_digits(args.seed)
    training = Training(images, labels, args)
    state = rw.elastic.State(
        arrays={"parameters": training.network.flat, "velocity": training.velocity, "losses": training.losses}
    )
    safe = threading.Event()

    @rw.elastic.run(state)
    def train(group: rw.Group, state: rw.elastic.State) -> tuple[rw.Group, Integers]:
        speaker = group.all_reduce(group.rank if state.resumptions else group.world_size, "min")
        if group.rank == speaker:  # the first of the ranks that went on
            print(cost(state.resumptions[-1]))
        if group.world_size == 1:
            safe.set()  # nobody would be left
        if args.kill_every and not state.resumptions:
            kill_this_rank_some_day(args.kill_every * group.world_size, safe)
        while state.step < len(training.losses):
            training.step(state.step, group)
            time.sleep(args.step_ms / 1e3)
            state.commit()
        safe.set()
        return group, group.all_gather_v(training.network.predict(my_part(test_images, group)))

    begin = time.perf_counter()
    group, predicted = train()
    alone = group.subgroup([0])
    if alone is None:
        return
    seconds = time.perf_counter() - begin
    print(f"{state.step} steps, at last on {group.world_size} ranks; this process took {seconds:.1f} s")
    reference = Training(images, labels, args)
    for number in range(len(reference.losses)):
        reference.step(number, alone)
    right = reference.network.predict(test_images)
    print(check_against_one_rank(training.losses, predicted, reference.losses, right))
    count = int(np.count_nonzero(predicted == test_labels))
    print(f"test accuracy {100 * count / len(test_labels):.2f} % ({count} of {len(test_labels)})")


if __name__ == "__main__":
    main()
