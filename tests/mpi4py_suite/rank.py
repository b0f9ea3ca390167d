"""One rank of one of mpi4py's test files: runs its tests and writes what became of each to a file.

python rank.py FOLDER FILE RESULTS [NAME...]: RESULTS gets the rank's number appended; tests whose id ends with one of
the names are left out.
"""

from __future__ import annotations

import json
import sys
import unittest
from importlib import import_module
from pathlib import Path


class Outcomes(unittest.TestResult):
    """Each test by its id: "passed", "skipped: why" or the last lines of its error."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.outcomes: dict[str, str] = {}
        self._path = path

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.outcomes[test.id()] = "passed"

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        self.write()

    def write(self) -> None:
        self._path.write_text(json.dumps(self.outcomes))

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.outcomes[test.id()] = f"skipped: {reason}"

    def addFailure(self, test: unittest.TestCase, err: object) -> None:
        self.outcomes[test.id()] = self._exc_info_to_string(err, test)  # type: ignore[attr-defined]

    addError = addFailure

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: object) -> None:
        if err is not None:
            self.addFailure(test, err)


def tests_of(suite: unittest.TestSuite) -> list[unittest.TestCase]:
    found: list[unittest.TestCase] = []
    for test in suite:
        found += tests_of(test) if isinstance(test, unittest.TestSuite) else [test]
    return found


def main() -> None:
    folder, file, results, *left_out = sys.argv[1:]
    sys.path.insert(0, folder)
    from mpi4py import MPI

    # Not those on a GPU: some only claim to be there, which rankwise refuses, and others need a driver for Numba.
    arrays = import_module("arrayimpl")
    arrays.ArrayBackends[:] = [kind for kind in arrays.ArrayBackends if "GPU" not in kind.__name__]
    rank = MPI.COMM_WORLD.Get_rank()
    tests = tests_of(unittest.defaultTestLoader.loadTestsFromName(Path(file).stem))
    chosen = [test for test in tests if not any(test.id().endswith(name) for name in left_out)]
    outcomes = Outcomes(Path(f"{results}.{rank}"))
    try:
        unittest.TestSuite(chosen).run(outcomes)
    finally:
        outcomes.write()


main()
