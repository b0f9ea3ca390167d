"""Garbage sent to where the ranks meet changes nothing: none of it is parsed, and the job goes on.

A *stranger* is a process of the same user that knows where rank 0 listens, but cannot sign with the job's secret.
"""

from __future__ import annotations

import fcntl
import gc
import hmac
import json
import os
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from faults.trials import Trial, fault
from rankwise._native import Segment
from rankwise.backends.native import rendezvous
from rankwise.contract.job import Job
from rankwise.meeting import connection as meeting_connection
from rankwise.meeting.served_store import NONCE

LONGEST = 5000  # bytes; more than rank 0 reads of what a stranger says

# What a stranger says, from the nonce that rank 0 greeted it with.
Words = Callable[[bytes], bytes]


def forged(identity: Any, secret: bytes) -> Words:
    """An introduction that is right in all but the secret, and an identity."""

    def words(nonce: bytes) -> bytes:
        mine, text = os.urandom(NONCE), json.dumps({"set": {"1": json.dumps(identity)}, "get": "answer"}).encode()
        return mine + hmac.digest(secret, b"client" + nonce + mine, "sha256") + text + b"\n"

    return words


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
identities = json_values | st.fixed_dictionaries(
    {"rank": json_values, "world_size": json_values, "locality": json_values}
)
packets = st.one_of(
    st.binary(max_size=LONGEST).map(lambda data: lambda nonce: data),
    st.binary(max_size=100).map(lambda data: lambda nonce: nonce + data),
    st.builds(forged, identities, st.binary(max_size=16)),
)
strangers = st.lists(st.lists(packets, max_size=3), max_size=6)


@pytest.fixture(autouse=True)
def no_garbage() -> Iterator[None]:
    """What earlier tests have left is freed before, not meanwhile: descriptors are counted."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def connection(job: Job, gone: Callable[[], bool] = lambda: False) -> socket.socket | None:
    """Knock until rank 0 opens, or `gone`."""
    while not gone():
        someone = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        someone.settimeout(10)
        try:
            someone.connect(rendezvous._address(job))
            return someone
        except (ConnectionRefusedError, BlockingIOError):
            someone.close()
    return None


def pester(job: Job, says: list[list[Words]]) -> None:
    """All strangers at once, each with its words and a descriptor; one that was dropped says no more."""
    there = [(connection(job), words) for words in says]
    for someone, words in there:
        assert someone is not None
        with someone, suppress(ConnectionError), open(os.devnull) as nothing:
            nonce = someone.recv(NONCE)
            for word in words:
                socket.send_fds(someone, [word(nonce)], [nothing.fileno()])


def join(job: Job, segments: list[Segment]) -> None:
    segments.append(rendezvous.meet(job, 30.0))


@contextmanager
def parsed() -> Iterator[list[bytes]]:
    """What json.loads of the meeting was given meanwhile."""
    seen: list[bytes] = []

    class Json:
        dumps = staticmethod(json.dumps)

        @staticmethod
        def loads(text: bytes) -> Any:
            seen.append(text)
            return json.loads(text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meeting_connection, "json", Json)
        yield seen


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(says=strangers)
def test_strangers_connect_to_the_rendezvous(says: list[list[Words]]) -> None:
    name = f"garbage {uuid.uuid4()}"
    ranks = [Job(rank, 3, None, None, "test", id=name, secret=b"known to the ranks") for rank in range(3)]
    segments: list[Segment] = []
    before = len(os.listdir("/proc/self/fd"))
    host, first, last = (threading.Thread(target=join, args=(job, segments)) for job in ranks)
    with parsed() as texts:
        host.start()
        first.start()
        pester(ranks[0], says)  # before the last rank comes, so that rank 0 is there all the time
        last.start()
        for thread in (host, first, last):
            thread.join(40)
    assert len({os.fstat(segment.fd).st_ino for segment in segments}) == 1
    assert len(segments) == 3
    said = [json.loads(text) for text in texts]
    assert sorted(rank for words in said for rank in words.get("set", ())) == ["1", "2"]
    assert len(said) == 2 + 2, "a stranger's words were parsed"  # two identities and the answers to them
    assert len(os.listdir("/proc/self/fd")) == before + 3, "a descriptor that a stranger sent was kept"


@settings(max_examples=40, deadline=None)
@given(answers=st.lists(st.binary(max_size=LONGEST), min_size=1, max_size=3), with_fd=st.booleans())
def test_a_stranger_listens_in_place_of_rank_0(answers: list[bytes], with_fd: bool) -> None:
    """It listens first and answers anything: the ranks accept nothing from it, and meet when it has gone."""
    name = f"garbage {uuid.uuid4()}"
    ranks = [Job(rank, 2, None, None, "test", id=name, secret=b"known to the ranks") for rank in range(2)]
    segments: list[Segment] = []
    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stranger.bind(rendezvous._address(ranks[0]))
    stranger.listen()
    stranger.settimeout(30)
    before = len(os.listdir("/proc/self/fd"))
    host, other = (threading.Thread(target=join, args=(job, segments)) for job in ranks)
    with parsed() as texts:
        other.start()
        victim, _ = stranger.accept()
        with suppress(ConnectionError), open(os.devnull) as nothing:
            for answer in answers:
                socket.send_fds(victim, [answer], [nothing.fileno()] if with_fd else [])
        victim.close()
        stranger.close()
        host.start()
        host.join(40)
        other.join(40)
    assert len(segments) == 2
    assert [list(json.loads(text)) for text in texts] == [["set", "get"], ["value"]]  # the identity, and the answer
    assert len(os.listdir("/proc/self/fd")) == before - 1 + 2, "a descriptor that a stranger sent was kept"


JOB = """
import sys
import numpy as np
import rankwise as rw
for turn in range(3):
    with rw.init(timeout=60) as group:
        for i in range(20):
            x = np.arange(5000.0) + group.rank
            assert (group.all_reduce(x) == 3 * np.arange(5000.0) + 3).all()
print("done")
"""


@fault(15, "garbage sent to a socket", few=1, full=50)
def test_a_job_under_garbage(trial: Trial) -> None:
    """Processes meet over a socket, again and again, while strangers keep connecting."""
    environment = {
        "WORLD_SIZE": "3",
        "LOCAL_WORLD_SIZE": "3",
        "TORCHELASTIC_RUN_ID": trial.seed,
        "RANKWISE_SECRET": "known to the ranks",
        "RANKWISE_BACKEND": "shm",
        "LOCAL_RANK": "0",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", JOB],
            env={**os.environ, **environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    name = f"torchrun {trial.seed} {os.environ.get('TORCHELASTIC_RESTART_COUNT', '')}  "
    job = Job(0, 3, id=name, secret=b"known to the ranks")
    over = threading.Event()
    said = 0

    def knock() -> None:
        nonlocal said
        while not over.is_set():
            someone = connection(job, over.is_set)
            if someone is None:
                return
            with someone, suppress(OSError):
                someone.send(trial.rng.randbytes(trial.rng.randint(0, LONGEST)))
                said += 1

    pests = [threading.Thread(target=knock) for _ in range(2)]
    for pest in pests:
        pest.start()
    told = [rank.communicate(timeout=100)[0] for rank in ranks]
    over.set()
    for pest in pests:
        pest.join(20)
    assert told == ["done\n"] * 3
    assert [rank.returncode for rank in ranks] == [0, 0, 0]
    assert said > 0, "nobody knocked where the ranks meet"


def test_the_segment_is_sealed() -> None:
    segment = Segment.create(2)
    seals = fcntl.fcntl(segment.fd, fcntl.F_GET_SEALS)
    assert seals & fcntl.F_SEAL_SHRINK
    assert seals & fcntl.F_SEAL_GROW
    assert seals & fcntl.F_SEAL_SEAL
    with pytest.raises(PermissionError):
        os.ftruncate(segment.fd, 4096)


def test_an_unsealed_file_is_not_accepted_as_a_segment(tmp_path: Path) -> None:
    other = os.memfd_create("rankwise")
    try:
        os.ftruncate(other, 1 << 20)
        with pytest.raises(ValueError, match="not a rankwise segment: its size is not sealed"):
            Segment.attach(other)
    finally:
        os.close(other)


SECRET = """
import os, sys
from pathlib import Path
import rankwise as rw
group = rw.init()
secret = os.environb[b"RANKWISE_SECRET"]
assert len(bytes.fromhex(secret.decode())) == 16
assert len(set(group.all_gather_object(secret))) == 1
for entry in Path("/proc").glob("[0-9]*/cmdline"):
    try:
        assert secret not in entry.read_bytes(), entry
    except (FileNotFoundError, ProcessLookupError):
        continue
print(secret.decode())
sys.exit(3)
"""


def test_the_secret_appears_in_no_command_line_or_message() -> None:
    jobs = [
        subprocess.run(
            [sys.executable, "-m", "rankwise", "run", "-n", "2", "--", "python", "-c", SECRET],
            capture_output=True,
            text=True,
            timeout=60,
        )
        for _ in range(2)
    ]
    secrets = [done.stdout.split()[0] for done in jobs]
    assert secrets[0] != secrets[1]
    for done, secret in zip(jobs, secrets, strict=True):
        assert done.returncode == 3
        assert secret not in done.stderr
    assert "key" not in repr(Job(0, 2, secret=b"key"))


PORTS = """
import os
from pathlib import Path
import rankwise as rw
with rw.init() as group:
    group.all_reduce(1)
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    sockets = {os.readlink(link) for link in links if os.path.islink(link)}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and f"socket:[{rest[5]}]" in sockets:  # it listens, and is ours
                print(table, local.split(":")[0])
    group.barrier()
print("done")
"""


LOOPBACK = "0100007F"  # 127.0.0.1, as the kernel writes it


def check_listeners(printed: str, backend: str) -> None:
    lines = sorted(printed.splitlines())
    assert set(lines) <= {"done", f"tcp {LOOPBACK}"}
    assert lines.count("done") == 2
    assert (len(lines) > 2) == (backend == "gloo")


@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_sockets_listen_on_this_host_only(backend: str) -> None:
    if backend == "gloo":
        pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-m", "rankwise", "run", "-n", "2", "--backend", backend, "--", "python", "-c", PORTS],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    check_listeners(done.stdout, backend)


@pytest.mark.slow  # the test above is of the same sockets
@pytest.mark.parametrize("sizes", [{}, {"LOCAL_WORLD_SIZE": "2"}])
def test_gloos_sockets_do_so_too_where_the_launcher_names_a_port(sizes: dict[str, str]) -> None:
    """As torchrun does, even on one host. A store of torch's at that port would listen on all interfaces."""
    pytest.importorskip("torch")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    environment = {**os.environ, **sizes, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PORTS],
            env={**environment, "RANKWISE_BACKEND": "gloo", "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    check_listeners("".join([rank.communicate(timeout=100)[0] for rank in ranks]), "gloo")
