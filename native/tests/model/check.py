"""Checks the models with spin: the protocols have no error, and leaving out any of their parts causes one.

Run by `make test-all PART=model`; needs spin and a C compiler. `check.py NAME` runs the cases with NAME in their line,
`check.py --large` only the cases that take long, and `check.py` all others.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDER = Path(__file__).resolve().parent

WAITING = {
    "steps, 2 ranks, any may die, deadlines": "STEPS=2 DEATHS=2 DEADLINES",
    "steps, 3 ranks, all wait for all": "N=3 STEPS=1",
    "steps, 3 ranks, one leaves early": "N=3 STEPS=2 EARLY",
    "steps, 3 ranks, one may die": "N=3 STEPS=1 DEATHS=1 NEIGHBOUR",
    "steps, 3 ranks, one leaves early, one may die": "N=3 STEPS=1 DEATHS=1 NEIGHBOUR EARLY",
    "steps, 2 ranks and one outside, two may die": "N=3 PAIR DEATHS=2",
    "messages, any rank may die, deadlines": "MESSAGES=3 DEATHS=2 DEADLINES",
}
BROKEN_WAITING = {
    "a sleeper does not poll again once registered": "STEPS=2 BREAK_RECHECK",
    "a sleeper reads its notifications only after it polled": "STEPS=2 BREAK_NOTIFICATION",
    "a receiver does not poll again once registered": "MESSAGES=2 BREAK_RECHECK",
    "a receiver reads its notifications only after it polled": "MESSAGES=2 BREAK_NOTIFICATION",
    "a rank that notices a death wakes no other": "STEPS=1 DEATHS=1 BREAK_WAKING",
    "a rank that dies while it leaves wakes no other": "STEPS=2 EARLY DEATHS=1 BREAK_LEAVING",
    "only the first rank to notice a death fails the groups": "N=3 PAIR DEATHS=2 BREAK_MARKING",
    "a failure record is not written atomically": "STEPS=2 DEATHS=1 DEADLINES BREAK_FAILURE_RECORD",
}

AGREEMENT = {
    "agreement, 2 ranks, three in turn, one may die, deadlines": "N=2 AGREEMENTS=3 DEATHS=1 DEADLINES",
    "agreement, 2 ranks, two in turn, deadlines": "N=2 AGREEMENTS=2 DEADLINES",
    "agreement, 3 ranks, one may die": "AGREEMENTS=1 DEATHS=1 COARSE",
    "agreement, 3 ranks, deadlines": "AGREEMENTS=1 DEADLINES COARSE",
}
BROKEN_AGREEMENT = {
    "a decision is not one compare-and-swap": "N=2 AGREEMENTS=1 DEADLINES BREAK_ADOPTION",
    "a rank that decides wakes no other": "AGREEMENTS=1 DEADLINES COARSE BREAK_WAKING",
    "a rank reads its notifications only after it polled who has arrived": "N=2 AGREEMENTS=1 BREAK_NOTIFICATION",
    "two agreements in turn share the memory of their proposals": "N=2 AGREEMENTS=2 DEADLINES BREAK_BUFFERS",
}

HEAP = {
    "heap, 2 processes": "",
    "heap, 2 processes, one may die": "DEATHS=1",
    "heap, 2 processes, both may die": "DEATHS=2",
    "heap, one allocates twice, two visit": "N=3 UNITS=1 A=1 B=0 ROUNDS=2",
    "heap that keeps blocks, 2 processes": "KEEP UNITS=2 A=1 B=1 ROUNDS=2",
    "heap that keeps blocks, of other sizes": "KEEP UNITS=2",
    "heap that keeps blocks, one may die": "KEEP UNITS=1 A=1 DEATHS=1 ROUNDS=2",
    "heap that keeps blocks, one allocates twice, one visits": "KEEP UNITS=1 A=1 B=0 ROUNDS=2",
}
BROKEN_HEAP = {
    "a visitor does not check the block again once counted": "BREAK_VISIT",
    "who frees a block looks for visitors only before it reserves it": "N=3 UNITS=1 A=1 B=0 ROUNDS=2 BREAK_RECHECK",
    "who keeps a block looks for visitors only before that": "KEEP N=3 UNITS=1 A=1 B=0 ROUNDS=2 BREAK_RECHECK",
    "a process claims units before it has reserved each": "N=3 UNITS=2 C=1 DEATHS=1 BREAK_CLAIM",
    "the units behind a published block's first count as abandoned": "DEATHS=1 BREAK_CONTINUED",
}

STARTED = {
    "started operations, one thread starts three": "OPS=3",
    "started operations, two threads start one each": "OWNERS=2 OPS=1",
    "started operations, two threads, a peer waits for the first": "OWNERS=2 OPS=1 PEER=1",
}
BROKEN_STARTED = {
    "a peer that sleeps does not ask for what it waits for": "BREAK_CALL",
    "who leaves an operation looks for sleepers only before": "BREAK_LOOK",
    "who runs an operation looks for others before it says that none is left": "OWNERS=2 OPS=1 BREAK_CLEAR",
    "a thread stops running the stream although another sleeps": "OWNERS=2 OPS=1 PEER=0 BREAK_HANDOVER",
}

OFFERS = {
    "offered messages, two of two pieces": "",
    "offered messages, three of three pieces": "MESSAGES=3 PIECES=3",
    "offered messages, the group may fail": "FAILS",
}
BROKEN_OFFERS = {
    "a sender that helps does not look again whether the message is still the same": "BREAK_RECHECK",
    "a receiver lets a sender help that may still be writing": "BREAK_WRITING",
    "a receiver claims a message in two steps": "BREAK_CLAIM",
    "who cancels a send does not wait for the receiver that copies it": "BREAK_CANCEL",
    "a receiver does not wait for the sender's pieces": "BREAK_DONE",
    "a sender that helps does not check whether the group has failed": "FAILS BREAK_FAILED",
    "a receiver whose group has failed does not wait for a sender that writes": "FAILS BREAK_FAILED_WRITING",
    "a send is complete when the last piece has only been begun": "BREAK_COMPLETE",
}

USES = {
    "uses of a group's memory, two threads": "",
    "uses of a group's memory, three threads that make calls": "USERS=3 ROUNDS=1 CALLS",
}
BROKEN_USES = {
    "a use looks for a close only before it is counted": "BREAK_BEGIN",
    "who gives up the lock after a close may count as the last": "BREAK_UNLOCK",
    "a close wakes no thread that waits for the lock": "BREAK_WAKING",
    "a thread that waits for the lock does not say so": "BREAK_AWAITING",
    "a thread sleeps although the lock was free when it was to be marked": "BREAK_RETRY",
    "a thread sleeps on the word, which may be as it was again": "BREAK_COUNT",
    "who gives up the lock unmarks it only when all are awake": "USERS=3 ROUNDS=1 CALLS BREAK_CLEAR",
}

MODELS = {
    "waiting.pml": (WAITING, BROKEN_WAITING),
    "agreement.pml": (AGREEMENT, BROKEN_AGREEMENT),
    "heap.pml": (HEAP, BROKEN_HEAP),
    "started.pml": (STARTED, BROKEN_STARTED),
    "offers.pml": (OFFERS, BROKEN_OFFERS),
    "uses.pml": (USES, BROKEN_USES),
}

LARGE = (  # make test-all runs them too
    "steps, 3 ranks, one may die",
    "agreement, 2 ranks, three in turn, one may die, deadlines",
    "agreement, 3 ranks, deadlines",
    "heap, one allocates twice, two visit",
    "heap, 2 processes, one may die",
    "agreement, 3 ranks, one may die",
    "heap, 2 processes, both may die",
    "broken: a process claims units before it has reserved each",
)


def explore(model: str, macros: str, level: str) -> tuple[str, int]:
    """Every state of the model with these macros: (the text of the first error or "", the number of states).

    level: the compiler's, of optimisation.
    """
    with tempfile.TemporaryDirectory() as folder:

        def run(*words: str) -> str:
            done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=600)
            if done.returncode != 0:
                raise RuntimeError(f"{' '.join(words)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
            return done.stdout

        run("spin", "-a", *(f"-D{macro}" for macro in macros.split()), str(FOLDER / model))
        # Safety: deadlocks and assertions. Every loop of the protocol sleeps or ends, so nothing can spin forever.
        # NOREDUCE: partial order reduction does not go together with `provided`.
        run("cc", level, "-w", "-DSAFETY", "-DNOREDUCE", "-DVECTORSZ=512", "-o", "pan", "pan.c")
        report = run("./pan", "-m100000", "-w22")
    error = re.search(r"^pan:1: (.*)", report, re.MULTILINE)
    states = re.search(r"(\d+) states, stored", report)
    if states is None or ("errors: 0" not in report and error is None) or "max search depth too small" in report:
        raise RuntimeError(f"spin's report is not understood:\n{report}")
    return error[1] if error else "", int(states[1])


def check(name: str, model: str, macros: str, sound: bool) -> bool:
    start = time.monotonic()
    # The compiler takes longer than most cases.
    error, states = explore(model, macros, "-O1" if name in LARGE else "-O0")
    right = sound != bool(error)
    found = {"": "no error"}.get(error, "a rank waits forever" if "invalid end state" in error else error)
    took = f"{states:>9,} states {time.monotonic() - start:5.1f} s"
    print(f"{'ok  ' if right else 'FAIL'}  {name:<76} {took}  {found}", flush=True)
    return right


def main(words: list[str]) -> int:
    cases = []
    for model, (sound, broken) in MODELS.items():
        cases += [(name, model, macros, True) for name, macros in sound.items()]
        cases += [(f"broken: {name}", model, macros, False) for name, macros in broken.items()]
    if words in ([], ["--large"]):
        cases = [case for case in cases if (case[0] in LARGE) == bool(words)]
    else:
        cases = [case for case in cases if all(word in case[0] for word in words)]
    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        right = list(pool.map(lambda case: check(*case), cases))
    return 0 if cases and all(right) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
