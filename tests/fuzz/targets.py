"""What may be garbage, read by code in Python: entry points of fuzzers, each a function of any bytes.

`with_atheris.py` guides them by coverage; `test_targets.py` runs them on their corpora, without it.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import socket
import struct
import tempfile
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np

from rankwise._native import Segment, SegmentView, check_plain, thresholds
from rankwise.contract.failure import text
from rankwise.frontends.tcl.commands import COMMANDS
from rankwise.frontends.tcl.handles import Handles
from rankwise.group import plain_types
from rankwise.group.object_block import CONSTRUCTOR, PLAIN, decode, encode
from rankwise.launch.node_meeting import Hello
from rankwise.meeting.connection import Connection
from rankwise.observe.jobs import RunningJob
from rankwise.pool import wire
from rankwise.system import failure_report, tuning_file
from rankwise.tools.status.table import as_json, table


class Bytes:
    """Reads data from its beginning; after its end there are zeros."""

    def __init__(self, data: bytes) -> None:
        self.rest = data

    def take(self, size: int) -> bytes:
        taken, self.rest = self.rest[:size], self.rest[size:]
        return taken + bytes(size - len(taken))

    def below(self, limit: int) -> int:
        return int.from_bytes(self.take(1 if limit <= 256 else 2), "little") % limit


# ---- pickles ----


class _Unpickler(pickle._Unpickler):  # type: ignore[name-defined, misc]
    """Python's own in Python, which knows `make` alone."""

    def find_class(self, module: str, name: str) -> Any:
        assert (module, name) == CONSTRUCTOR, f"a pickle that passed the check names {module}.{name}"
        return plain_types.make


def only_plain(value: Any, seen: set[int]) -> None:
    if id(value) in seen:
        return
    seen.add(id(value))
    assert value is None or plain_types._name(type(value)) or isinstance(value, np.generic | np.dtype), type(value)
    if isinstance(value, dict):
        for pair in list(value.items()):
            only_plain(pair, seen)
    elif isinstance(value, list | tuple | set | frozenset | deque):
        for item in list(value):
            only_plain(item, seen)
    elif isinstance(value, np.ndarray):
        assert not value.dtype.hasobject


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except SystemError:  # NumPy's, for an array of characters that do not exist
        return ""


def pickles(data: bytes) -> None:
    """What the check accepts is plain data, and the same to Python's two Unpicklers. The rest is refused."""
    stream, buffers = data[1:], [np.full(size, 7, np.uint8) for size in (8, 24, 64)][: data[0] % 4 if data else 0]
    try:
        check_plain(stream, len(buffers), CONSTRUCTOR)
    except (TypeError, ValueError):
        for read in (lambda: decode(stream, buffers, False, 0), lambda: PLAIN.read(stream, 0)):
            with suppress(TypeError, ValueError):
                only_plain(read(), set())
                assert buffers, "an object was made of a stream that the check refuses"
        return
    try:
        value = decode(stream, buffers, False, 0)
    except ValueError:
        return
    only_plain(value, set())
    assert _shown(_Unpickler(io.BytesIO(stream), buffers=buffers).load()) == _shown(value)


def objects(data: bytes) -> None:
    """What we encode, we accept, and it is the same afterwards."""
    made = _object(Bytes(data), 4)
    stream, buffers = encode(made, False)
    assert repr(decode(stream, [buffer.copy() for buffer in buffers], False, 0)) == repr(made)
    assert repr(PLAIN.read(b"".join(PLAIN.encode(made)), 0)) == repr(made)


def _object(given: Bytes, depth: int) -> Any:
    def some() -> list[Any]:
        return [_object(given, depth - 1) for _ in range(given.below(4) if depth else 0)]

    def number() -> int:
        return int.from_bytes(given.take(given.below(12)), "little", signed=True)

    match given.below(16):
        case 0:
            return None
        case 1:
            return bool(given.below(2))
        case 2:
            return number()
        case 3:
            return struct.unpack("<d", given.take(8))[0]
        case 4:
            return given.take(given.below(300)).decode("latin-1")
        case 5:
            return given.take(given.below(300))
        case 6:
            return bytearray(given.take(given.below(300)))
        case 7:
            return some()
        case 8:
            return tuple(some())
        case 9:
            return {number(): value for value in some()}
        case 10:
            return {number()}  # the order of several may differ
        case 11:
            return np.frombuffer(given.take(8 * given.below(4)), np.int64).copy()
        case 12:
            return np.zeros(given.below(2000), "f4,U2")
        case 13:
            return deque(some(), 5)
        case 14:
            return range(number(), number(), number() or 1)
        case _:
            return [value := some(), value]


# ---- words, messages and files ----


def tcl_words(data: bytes) -> None:
    """The words of any call of a Tcl command are arguments of its function, or a ValueError."""
    given = Bytes(data)
    command = list(COMMANDS.values())[given.below(len(COMMANDS))]
    handles = Handles()
    handles.add(np.zeros(2))
    words = given.rest.decode("utf-8", "replace").split("\0")
    names = [f"-{parameter.option}" for parameter in command.parameters]
    words = [
        names[ord(word[1]) % len(names)] if word[:1] == "\1" and len(word) == 2 and names else word for word in words
    ]
    with suppress(ValueError):
        assert set(command.arguments(handles, words)) == {parameter.name for parameter in command.parameters}


def calls(data: bytes) -> None:
    """Any message of a pool, with a file of any bytes or without one, is one message or an error."""
    given = Bytes(data)
    has_file, header = given.below(2), given.take(given.below(40))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, tempfile.TemporaryFile() as file:
        file.write(given.rest)
        file.flush()
        socket.send_fds(theirs, [header or b"\0"], [file.fileno()] * has_file)
        with suppress(OSError, ValueError, MemoryError, OverflowError, struct.error):
            message = wire.receive(ours)
            assert message is not None
            assert sum(len(bytes(part)) for part in message[3]) <= len(header) + len(given.rest)


def hellos(data: bytes) -> None:
    """Any message where the launchers of several nodes meet is a hello that fits, a reason, or ignored."""
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(data + b"\n")
        connection = Connection(ours)
        message = connection.receive()
        connection.close()
    assert message is None or isinstance(message, dict)
    own = Hello("1.0", 0, 2, 1, "here")
    assert isinstance(own.other_version("1", data), str)
    if hello := Hello.parse(data):
        assert isinstance(own.misfit(hello, None), str)
        assert isinstance(own.misfit(hello, hello), str)


def tuning_files(data: bytes) -> None:
    """Any tuning file is one, which is the same after it was saved, or a ValueError that names it."""
    with tempfile.TemporaryDirectory() as folder:
        path, copy = f"{folder}/tuning.json", f"{folder}/copy.json"
        with open(path, "wb") as file:
            file.write(data)
        error = ""
        try:
            found = tuning_file.load(path, thresholds())
        except ValueError as refused:
            error = str(refused)
        if error:
            assert path in error
            return
        tuning_file.save(copy, found)
        assert tuning_file.load(copy, thresholds()) == found


def reports(data: bytes) -> None:
    """Whatever a rank has left where its report belongs, its launcher reads one, or none."""
    fd = os.memfd_create("report")
    try:
        os.pwrite(fd, data, 0)
        report = failure_report.read(fd, 0)
    finally:
        os.close(fd)
    for failure in report:
        if failure is not None:
            assert isinstance(failure.summary, str)
            assert isinstance(text(failure), str)
            json.loads(failure.to_json())


_RANKS = 2
_SEGMENT = Segment.create(_RANKS)
_HEAD = os.pread(_SEGMENT.fd, 16640 + 2 * 384 + 4096 + _RANKS * 65536, 0)


def status(data: bytes) -> None:
    """Whatever is in the memory of another user's job, `rankwise status` shows a table of it, or none."""
    from fcntl import F_ADD_SEALS, F_SEAL_GROW, F_SEAL_SHRINK, fcntl

    given, memory = Bytes(data), bytearray(_HEAD)
    while given.rest:
        at = (0, 16640, 17024, 20480, 20480 + 65536, 20480)[given.below(6)] + given.below(512)
        part = given.take(given.below(33))
        memory[at : at + len(part)] = part
    fd = os.memfd_create("rankwise", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.pwrite(fd, memory, 0)
        os.ftruncate(fd, 80 << 20)
        fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK)
        view = SegmentView(fd)
    except ValueError:
        return
    finally:
        os.close(fd)
    if view.world_size > 8:
        view = SimpleNamespace(world_size=8, state=view.state, operations=view.operations, started=view.started)  # type: ignore[assignment]
    job = RunningJob(view, "", {(0, 0): os.getpid()})
    shown = table(job)
    assert "".join(map("".join, shown.rows)).isprintable()
    json.dumps(as_json(job))


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (pickles, objects, tcl_words, calls, hellos, tuning_files, reports, status)
}
"""By name."""
