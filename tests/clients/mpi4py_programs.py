"""Runs programs of packages that build on mpi4py, on MPICH and unchanged on rankwise, and compares.

    PYTHONPATH=tests python -m clients.mpi4py_programs [--ranks 3]

A program fails on rankwise if it ends with another status than 0, hangs, or prints another line "result: ..." than on
MPICH. Ends with status 1 if one fails that passes on MPICH.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

from clients.run import NotInstalled, environment, variables
from clients.table import Client

ON_MPICH = ("mpi4py==4.1.2", "mpich==5.0.2")
CLIENTS = (
    Client(
        "mpi4py",
        (
            *ON_MPICH,
            "schwimmbad==0.4.2",
            "emcee==3.1.6",
            "pylops-mpi==0.8.0",
            "zeus-mcmc==2.5.4",
            "ultranest==4.6.3",
            "cobaya==3.6.2",
            "ase==3.29.0",
            "dask-mpi==2026.3.0",
        ),
        (),
    ),
    Client("mpi4py-fft", ("mpi4py-fft==2.0.6", *ON_MPICH), ()),  # pip builds it, with FFTW: apt install libfftw3-dev
)
"""The programs of each are in a folder of its name."""
SECONDS = 120


def outcome(words: list[str], home: Path) -> tuple[bool, str, float]:
    """Whether a program ended well, its result or what was wrong, and the seconds that it took."""
    begun = time.monotonic()
    try:
        done = subprocess.run(words, env=variables(home), capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return False, f"it did not end within {SECONDS} s", SECONDS
    seconds = time.monotonic() - begun
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no error text"])[-1]
        return False, f"status {done.returncode}: {last}", seconds
    found = re.search(r"\bresult: (.*)$", done.stdout, re.MULTILINE)
    return True, found[1] if found else "", seconds


def compared(client: Client, n: str) -> int:
    """Run a client's programs on n ranks; returns how many fail that pass on MPICH."""
    try:
        home = environment(client)
    except NotInstalled as error:
        print(f"not tested: programs of {client.name}: {error}")
        return 0
    worse = 0
    for path in sorted(Path(__file__).with_name(client.name).glob("*.py")):
        name, program, python = path.name, str(path), str(home / "bin" / "python")
        on_mpich = outcome([str(home / "bin" / "mpiexec"), "-n", n, python, program], home)
        ours = outcome([python, "-m", "rankwise", "run", "-n", n, "--mpi4py", program], home)
        same = ours[0] and ours[1] == on_mpich[1]
        worse += on_mpich[0] and not same
        outcomes = "equal" if same else "DIFFERS" if on_mpich[0] else "FAILED ON MPICH"
        print(f"{name:<22} mpich {on_mpich[2]:6.1f} s, rankwise {ours[2]:6.1f} s: {outcomes}")
        if not same:
            print(f"  mpich: {on_mpich[1]}\n  rankwise: {ours[1]}")
    return worse


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=3)
    n = str(parser.parse_args().ranks)
    return bool(sum(compared(client, n) for client in CLIENTS))


if __name__ == "__main__":
    sys.exit(main())
