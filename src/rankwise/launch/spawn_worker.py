"""The program of a rank of `rankwise.spawn`: read the function, call it, report the result."""

from __future__ import annotations

import io
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import import_module
from types import CodeType
from typing import Any, BinaryIO

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
        ERROR + error_report(error.with_traceback(trace and trace.tb_next), __file__)  # without the frame of python -c
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
        return _dumps_with_files(import_module("cloudpickle").Pickler)
    except ImportError:
        name = getattr(fn, "__qualname__", "")
        if getattr(fn, "__module__", None) == "__main__" or "<" in name:
            raise TypeError(
                f"fn={name or fn!r}: a function of the main script or a notebook, a lambda or a local function "
                "cannot be sent to other processes without cloudpickle: pip install 'rankwise[notebook]', "
                "or move it to a module"
            ) from None
        return pickle.dumps


@cache
def _dumps_with_files(base: Any) -> Callable[..., bytes]:
    """As cloudpickle.dumps, but tracebacks of the code name its file, or its cell in a notebook. base: its Pickler."""

    def code(obj: CodeType) -> tuple[object, ...]:
        make, fields = base.dispatch_table[CodeType](obj)
        file = _file_or_cell(obj.co_filename)
        return make, tuple(
            file if isinstance(field, str) and field in ("<dynamic-code>", obj.co_filename) else field
            for field in fields
        )

    class Pickler(base):  # type: ignore[misc]
        dispatch_table = base.dispatch_table.new_child({CodeType: code})

    def dumps(obj: object, **options: Any) -> bytes:
        file = io.BytesIO()
        Pickler(file, **options).dump(obj)
        return file.getvalue()

    return dumps


def _file_or_cell(file: str) -> str:
    """IPython keeps a cell's code under the name of a file, which no other process has."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    cell = shell.compile.format_code_name(file) if shell else None
    return " ".join(cell) if cell else file


def error_report(error: BaseException, file: str) -> bytes:
    """An error, with its traceback as text from the first frame that is not in this file."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename == file:
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
