"""The program of a rank of `rankwise.spawn`: read the function, call it, report the result."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import BinaryIO

from rankwise._native import end_with
from rankwise.contract.errors import described, traceback_text
from rankwise.system.settings import Settings

RESULT, ERROR = b"R", b"E"
"""The first byte of a rank's report. After it comes the pickled result, or a pickle of the pickled error and its
description and traceback as text."""


def main(payload: BinaryIO, results: Sequence[int]) -> None:
    """Call the function in `payload`; write its result to this rank's descriptor of `results`."""
    settings = Settings.read()
    rank, caller = settings.rank, settings.launcher_pid
    assert rank is not None
    assert caller is not None
    end_with(caller)  # even if the function never calls rankwise.init
    # An uncaught error ends this process as usual, but the caller prints it instead of this process.
    write = partial(_write, results[rank], os.getpid())
    sys.excepthook = lambda kind, error, trace: write(
        ERROR + error_report(error.with_traceback(trace), "<string>", __file__)
    )
    with payload:
        fn, args, kwargs = pickle.load(payload)
    result = fn(*args, **kwargs)
    try:
        report = pickler(fn)(result)
    except BaseException as error:
        raise cannot_travel(result, error) from error
    write(RESULT + report)


def pickler(fn: Callable[..., object]) -> Callable[[object], bytes]:
    """The pickling function: cloudpickle's if it is installed. Raises TypeError if it is missing and `fn` needs it."""
    try:
        dumps: Callable[[object], bytes] = import_module("cloudpickle").dumps
    except ImportError:
        name = getattr(fn, "__qualname__", "")
        if getattr(fn, "__module__", None) == "__main__" or "<" in name:
            raise TypeError(
                f"fn={name or fn!r}: a function of the main script or a notebook, a lambda or a local function "
                "cannot be sent to other processes without cloudpickle: pip install 'rankwise[notebook]', "
                "or move it to a module"
            ) from None
        return pickle.dumps
    return dumps


def error_report(error: BaseException, *files: str) -> bytes:
    """An error, with its traceback as text from the first frame that is in none of these files."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename in files:
        trace = trace.tb_next
    try:
        pickled = pickler(error_report)(error)
    except BaseException:  # noqa: BLE001 - whatever its methods raise
        pickled = b""
    return pickle.dumps((pickled, described(error), traceback_text(error, trace)))


def cannot_travel(result: object, error: BaseException) -> TypeError:
    """The error of a result whose pickling raised this error."""
    return TypeError(f"the result of fn, {type(result).__name__}, cannot be sent back: {described(error)}")


def _write(fd: int, rank: int, report: bytes) -> None:
    """rank: the rank's pid. A child that it has forked may end in the same way, and reports nothing."""
    if os.getpid() != rank:
        return
    with open(fd, "wb", closefd=False) as file:
        file.truncate(0)
        file.write(report)
