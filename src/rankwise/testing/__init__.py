"""Help for testing: run_ranks runs a function on n ranks, and the conformance suite checks a backend.

from rankwise.testing import run_ranks
sums = run_ranks(lambda group: group.all_reduce(group.rank), 4)

python -m rankwise.testing.conformance --backend shm -n 4
"""

from rankwise.testing.ranks import RanksFailed, close_pools, run_ranks
from rankwise.testing.suite import Report, check_backend

__all__ = ["RanksFailed", "Report", "check_backend", "close_pools", "run_ranks"]
