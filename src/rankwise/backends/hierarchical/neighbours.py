"""Ranks that run on one host but cannot share memory: they count as being on several hosts, and the log says why.

Each rank sends all ranks of the job its mark: digests of its locality, which are shorter than the locality itself.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence

from rankwise.system.locality import REMEDIES

_WHOLE, _PART = 32, 4  # bytes of a digest


def locality_mark(locality: Mapping[str, str], inode: int | None) -> bytes:
    """Equal for ranks that share memory: a digest of the locality and the launcher's segment, and one of each part."""
    parts = b"".join(_digest(locality.get(part))[:_PART] for part in REMEDIES)
    return _digest((dict(locality), inode))[:_WHOLE] + parts


def log_neighbour(marks: Sequence[bytes], rank: int) -> None:
    """Log a warning if an earlier rank is on this rank's host but cannot share memory with it."""
    for other in range(rank):
        part = _difference(marks[other], marks[rank])
        if part not in (None, "host"):
            logging.getLogger("rankwise").warning(
                "rank %d runs on the host of rank %d but cannot share memory with it, because the %s differs; "
                "to share memory, %s",
                rank, other, part, REMEDIES[part],
            )  # fmt: skip
            return


def _difference(one: bytes, other: bytes) -> str | None:
    """The first part in which the localities of two marks differ."""
    for number, part in enumerate(REMEDIES):
        here = slice(_WHOLE + number * _PART, _WHOLE + (number + 1) * _PART)
        if one[here] != other[here]:
            return part
    return None


def _digest(value: object) -> bytes:
    return hashlib.sha256(repr(value).encode()).digest()
