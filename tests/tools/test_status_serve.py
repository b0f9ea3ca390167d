"""`rankwise status --serve` and `--prometheus`: a running job for browsers and programs that have the token."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chromium import ABSENT, CHROMIUM, shown
from in_process import rankwise
from rankwise import _native
from rankwise.observe.jobs import jobs_of, running_jobs
from rankwise.tools.status.serve import Server, token_of
from rankwise.tools.status.table import as_prometheus

RANKWISE = [sys.executable, "-m", "rankwise"]
TOKEN = "t" * 20

# Rank 0 waits for its standard input to end, the other for rank 0.
PROGRAM = """# <b>& to be escaped
import sys
import numpy as np
import rankwise as rw
group = rw.init()
group.all_reduce(np.ones(1 << 17))
if group.rank == 0:
    print("ready", flush=True)
    sys.stdin.read()
group.barrier()
"""


@pytest.fixture(scope="module")
def job() -> Iterator[int]:
    """The pid of the launcher of a job of two ranks."""
    command = [*RANKWISE, "run", "-n", "2", "--timeout", "100", "--", "python", "-c", PROGRAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == b"ready\n"
        yield launcher.pid
        launcher.communicate(timeout=100)
    assert launcher.returncode == 0


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(0, TOKEN, running_jobs) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def get(server: Server, path: str, **headers: str) -> tuple[int, str, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=100)
    connection.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}", **headers})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text, answer.headers


def test_the_jobs_as_html(job: int, server: Server) -> None:
    end = time.monotonic() + 60
    while True:
        status, text, headers = get(server, "/jobs")
        assert status == 200
        if '<tr class="awaited"><td>&gt; 0</td>' in text:  # rank 1 has come to the barrier
            break
        assert time.monotonic() < end, text
    assert f"launcher {job}: <code>" in text
    assert "&lt;b&gt;&amp;" in text, "the command is escaped"
    assert "<b>" not in text
    assert "Others wait for the ranks marked with &gt;." in text
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert headers["Cache-Control"] == "no-store"


@pytest.mark.skipif(CHROMIUM is None, reason=ABSENT)
@pytest.mark.parametrize(("token", "text"), [(TOKEN, "launcher "), ("wrong", "the token is missing or wrong")])
def test_a_browser_shows_it(job: int, server: Server, token: str, text: str, tmp_path: Path) -> None:
    page = shown(server.address.replace(TOKEN, token), tmp_path)
    assert text in re.sub(r"<script>.*</script>", "", page, flags=re.DOTALL)


def test_json_is_that_of_the_command(job: int, server: Server) -> None:
    status, text, _ = get(server, "/json")
    assert status == 200
    (found,) = (one for one in json.loads(text) if one["launcher"] == job)
    done = subprocess.run([*RANKWISE, "status", "--json", str(job)], capture_output=True, text=True, timeout=100)
    (expected,) = json.loads(done.stdout)
    assert found.keys() == expected.keys()
    assert [rank["pid"] for rank in found["ranks"]] == [rank["pid"] for rank in expected["ranks"]]


def test_prometheus_reads_the_metrics(job: int, server: Server) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    status, text, headers = get(server, "/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    command = subprocess.run(
        [*RANKWISE, "status", "--prometheus", str(job)], capture_output=True, text=True, timeout=100
    )
    for printed in (text, command.stdout):
        values = {
            (sample.name, sample.labels["rank"]): sample.value
            for family in parser.text_string_to_metric_families(printed)
            for sample in family.samples
            if sample.labels["job_pid"] == str(job)
        }
        assert values["rankwise_rank_alive", "0"] == values["rankwise_rank_alive", "1"] == 1
        assert values["rankwise_rank_moved_bytes_total", "1"] >= 1 << 20
        assert values["rankwise_rank_operations_total", "0"] >= 1
        assert values["rankwise_rank_restarts", "0"] == 0


def test_several_groups_of_one_process_have_metrics_of_their_own() -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    segments = [_native.Segment.create(2), _native.Segment.create(2)]
    printed = as_prometheus(jobs_of(os.getpid()))
    del segments
    series = [
        (sample.name, *sorted(sample.labels.items()))
        for family in parser.text_string_to_metric_families(printed)
        for sample in family.samples
    ]
    assert len(series) >= 2 * 2 * 8
    assert len(series) == len(set(series))


def test_the_page_needs_no_token_and_says_nothing_of_a_job(job: int, server: Server) -> None:
    status, text, _ = get(server, "/", Authorization="")
    assert status == 200
    assert str(job) not in text
    assert not re.search(r"""(src|href)=|url\(|import\(""", text), "it loads nothing from elsewhere"


@pytest.mark.parametrize("path", ["/jobs", "/json", "/metrics"])
@pytest.mark.parametrize("given", ["", "Bearer", f"Bearer {TOKEN}x", "Bearer \xe9", TOKEN])
def test_without_the_token_there_is_nothing(server: Server, path: str, given: str) -> None:
    status, text, headers = get(server, path, Authorization=given)
    assert status == 401
    assert "the token is missing or wrong" in text
    assert headers["WWW-Authenticate"] == "Bearer"


def test_another_host_name_is_refused(server: Server) -> None:
    assert get(server, "/jobs", Host="evil.example:80")[0] == 403
    assert get(server, "/jobs", Host="localhost")[0] == 200


def test_what_there_is_not(server: Server) -> None:
    status, text, _ = get(server, "/../etc/passwd")
    assert (status, text) == (404, "there is no /../etc/passwd: expected /, /jobs, /json or /metrics")
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=100)
    connection.request("POST", "/jobs", headers={"Authorization": f"Bearer {TOKEN}"})
    assert connection.getresponse().status == 501
    connection.close()


def test_a_token_file_that_others_can_read_or_change_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    for mode in (0o640, 0o604, 0o620, 0o602, 0o644):
        path.chmod(mode)
        with pytest.raises(ValueError, match=f"{path} belongs to user {os.geteuid()} and has the mode {mode:04o}: exp"):
            token_of(str(path))
    command = [*RANKWISE, "status", "--serve", "--token-file", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"--token-file: {path} belongs to user" in done.stderr
    path.chmod(0o600)
    assert token_of(str(path)) == TOKEN


def test_a_token_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(0o600)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(ValueError, match=f"{path} belongs to user {owner} and has the mode 0600: expected a file of"):
        token_of(str(path))


def test_token_files(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = token_of(str(path))
    assert len(token) >= 16
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert token_of(str(path)) == token
    assert token_of(None) != token_of(None)
    path.write_text("short")
    with pytest.raises(ValueError, match="holds no token: expected at least 16 letters"):
        token_of(str(path))


def test_the_command_serves_until_it_is_interrupted(job: int, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    command = [*RANKWISE, "status", str(job), "--serve", "--token-file", str(tmp_path / "token")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(rf"http://127\.0\.0\.1:(\d+)/#{TOKEN}\n", line)
        assert found, line
        connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=100)
        connection.request("GET", "/jobs", headers={"Authorization": f"Bearer {TOKEN}"})
        assert connection.getresponse().status == 200
        connection.close()
        # The same port a second time is an error of one line.
        again = subprocess.run(
            [*RANKWISE, "status", "--serve", found[1]], capture_output=True, text=True, timeout=100, check=False
        )
        assert again.returncode == 1
        assert re.fullmatch(
            rf"rankwise status: error: port {found[1]} of 127\.0\.0\.1 cannot be used: .*\n", again.stderr
        )
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=100)
    assert (process.returncode, errors) == (0, "")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--serve", "x"], "argument --serve: expected a port from 0 to 65535, got 'x'"),
        (["--serve", "70000"], "argument --serve: expected a port from 0 to 65535, got '70000'"),
        (["--token-file", "t"], "--token-file is for --serve"),
        (["--json", "--prometheus"], "not allowed with argument"),
    ],
)
def test_wrong_words(words: list[str], why: str, capfd: pytest.CaptureFixture[str]) -> None:
    done = rankwise(capfd, "status", *words)
    assert done.returncode == 2
    assert done.stderr.startswith("rankwise status: error: ")
    assert why in done.stderr
