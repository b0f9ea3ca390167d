"""One rank that runs tests of torch's own suite, one after the other, in one process.

    python rank.py RANK WORLD_SIZE BACKEND

Reads the name of a test, and a file to meet by, a line each test; answers with a line of JSON:
{"outcome": "passed" | "failed" | "skipped", "why": text}. The tests are the methods of
DistributedTest._DistTestBase, which ask for gloo in so many words where they want a CPU backend:
the module is therefore loaded with gloo's name, which run.py puts into the environment, and told the
real one afterwards.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
import unittest
import warnings
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.testing._internal import common_utils
from torch.testing._internal.common_distributed import TEST_SKIPS, DistTestCases
from torch.testing._internal.distributed import distributed_test

RANK, WORLD_SIZE, BACKEND = int(sys.argv[1]), sys.argv[2], sys.argv[3]


class Name(str):
    """The name of a backend that also passes for gloo where a test asks which CPU backend it runs on."""

    def __eq__(self, other: object) -> bool:
        return other == "gloo" or super().__eq__(other)

    __hash__ = str.__hash__


for feature in ("ddp", "subgroup", "plugin", "gpu"):
    DistTestCases.backend_feature[feature].add(BACKEND)
distributed_test.BACKEND = Name(BACKEND)


class Case(common_utils.TestCase, distributed_test.DistributedTest._DistTestBase):
    """The suite's tests in this process, without the processes that its own class starts."""

    rank = RANK
    world_size = WORLD_SIZE  # a text, as in the suite
    skip_return_code_checks: list[Any] = []  # noqa: RUF012 - as the suite's own class has it
    file_name = ""

    @property
    def init_method(self) -> str:
        return f"file://{self.file_name}"

    def runTest(self) -> None:
        pass


def outcome(name: str, file: str) -> tuple[str, str]:
    case = Case()
    case.file_name = file
    distributed_test.Barrier.barrier_id = 0
    seconds = distributed_test.CUSTOM_PG_TIMEOUT.get(name, distributed_test.default_pg_timeout)
    try:
        dist.init_process_group(
            BACKEND,
            init_method=f"file://{file}",
            world_size=int(WORLD_SIZE),
            rank=RANK,
            timeout=timedelta(seconds=seconds),
        )
        case._barrier()
        common_utils.set_rng_seed()
        getattr(case, name)()
        case._barrier()
    except unittest.SkipTest as skip:
        return "skipped", str(skip)
    except SystemExit as end:
        for skip in TEST_SKIPS.values():
            if skip.exit_code == end.code:
                return "skipped", skip.message
        return ("passed", "") if end.code in (0, None) else ("failed", f"exit status {end.code}")
    except BaseException:  # noqa: BLE001 - reported
        return "failed", traceback.format_exc()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return "passed", ""


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the tests print is no answer
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        name, file = line.split()
        result, why = outcome(name, file)
        print(json.dumps({"outcome": result, "why": why}), file=answers, flush=True)


if __name__ == "__main__":
    main()
