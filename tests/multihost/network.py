"""Hosts for tests: namespaces of network and processes, each with a card on one switch.

The namespaces have no names. Each lives as long as a process that holds it, and that ends with this
one, however this one ends, as does the switch; all processes inside go with it. So nothing can be left behind.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

PORT = 29500
CARD = "eth0"  # what a host calls its network card
SWITCH = Path(__file__).with_name("switch.py")


class CannotMake(Exception):
    """Network namespaces cannot be made here; the message says why."""


class Namespace:
    """Namespaces of network, processes and mounts, held by a process that waits for the end of its input."""

    def __init__(self) -> None:
        try:
            self._holder = subprocess.Popen(
                ["unshare", "--net", "--pid", "--fork", "--mount-proc", "sh", "-c", "echo made; exec cat"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        except FileNotFoundError as error:
            raise CannotMake(f"{error.filename} is not installed (util-linux)") from None
        assert self._holder.stdout is not None
        assert self._holder.stderr is not None
        if self._holder.stdout.readline() != "made\n":
            why = self._holder.stderr.read().strip()
            self.close()
            raise CannotMake(why)
        self.pid = child_of(self._holder.pid)

    def command(self, *words: str) -> list[str]:
        """What runs a command in here, as the child of the process started."""
        return ["nsenter", f"--target={self.pid}", "--net", "--pid", "--mount", *words]

    def run(self, *words: str) -> str:
        """Run a command on this network; CannotMake with what it said where it fails."""
        try:
            done = subprocess.run(
                ["nsenter", f"--target={self.pid}", "--net", *words],
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )
        except FileNotFoundError as error:
            raise CannotMake(f"{error.filename} is not installed (util-linux)") from None
        if done.returncode:
            raise CannotMake(f"{' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def close(self) -> None:
        assert self._holder.stdin is not None
        self._holder.stdin.close()
        self._holder.wait()
        for pipe in (self._holder.stdout, self._holder.stderr):
            assert pipe is not None
            pipe.close()


def child_of(pid: int) -> int:
    """The one child of a process."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())


class Network:
    """`hosts` hosts with the addresses 10.0.0.1, 10.0.0.2, ... on one switch (switch.py).

    rate: what each host's card sends and receives at most, in Mbit/s. delay: ms from each card to each other one.
    CannotMake where this system allows no namespaces or no TAP devices.
    """

    def __init__(self, hosts: int, *, rate: float | None = None, delay: float = 0.0) -> None:
        self.hosts: list[Namespace] = []
        self._switch: subprocess.Popen[str] | None = None
        try:
            for _ in range(hosts):
                self.hosts.append(Namespace())
            self._start_switch(rate, delay)
            for number, host in enumerate(self.hosts, 1):
                host.run("ip", "link", "set", "lo", "up")
                host.run("ip", "link", "set", CARD, "address", f"02:00:00:00:00:{number:02x}", "up")
                host.run("ip", "address", "add", f"10.0.0.{number}/24", "dev", CARD)
        except BaseException:
            self.close()
            raise

    def _start_switch(self, rate: float | None, delay: float) -> None:
        limits = [f"--delay={delay}", *([] if rate is None else [f"--rate={rate}"])]
        self._switch = subprocess.Popen(
            [sys.executable, str(SWITCH), *(str(host.pid) for host in self.hosts), *limits],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._switch.stdout is not None
        assert self._switch.stderr is not None
        if self._switch.stdout.readline() != "made\n":
            raise CannotMake(self._switch.stderr.read().strip())

    def sent(self, host: int) -> int:
        """Bytes that have left this host's card, headers and acknowledgements included."""
        (card,) = json.loads(self.hosts[host].run("ip", "-json", "-statistics", "link", "show", CARD))
        return int(card["stats64"]["tx"]["bytes"])

    def cut_off(self, host: int) -> None:
        """Pull this host's cable out of the switch."""
        assert self._switch is not None
        assert self._switch.stdin is not None
        self._switch.stdin.write(f"cut {host}\n")
        self._switch.stdin.flush()

    def close(self) -> None:
        if self._switch is not None:
            self._switch.communicate()
        for namespace in self.hosts:
            namespace.close()

    def __enter__(self) -> Network:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def rank_variables(placement: Sequence[int], rank: int, port: int = PORT) -> dict[str, str]:
    """What torchrun would put into the environment of a rank. placement: the host of each rank."""
    here = [other for other, host in enumerate(placement) if host == placement[rank]]
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(placement)),
        "LOCAL_RANK": str(here.index(rank)),
        "LOCAL_WORLD_SIZE": str(len(here)),
        "GROUP_RANK": str(placement[rank]),
        "MASTER_ADDR": f"10.0.0.{placement[0] + 1}",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }


class Ranks:
    """A Python program on every host, as torchrun without its agent would start it: RANK, WORLD_SIZE, MASTER_ADDR.

    placement: the host of each rank. Output and errors of each rank are in `folder`.
    """

    def __init__(
        self,
        network: Network,
        placement: Sequence[int],
        program: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
    ) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self._folder = folder
        for rank, host in enumerate(placement):
            variables = rank_variables(placement, rank)
            with self._file(rank, "out").open("wb") as out, self._file(rank, "err").open("wb") as err:
                self.processes.append(
                    subprocess.Popen(
                        network.hosts[host].command(sys.executable, *program),
                        env={**os.environ, **variables, **environment},
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=err,
                    )
                )

    def _file(self, rank: int, kind: str) -> Path:
        return self._folder / f"rank{rank}.{kind}"

    def out(self, rank: int) -> str:
        return self._file(rank, "out").read_text(errors="replace")

    def err(self, rank: int) -> str:
        return self._file(rank, "err").read_text(errors="replace")

    def kill(self, rank: int) -> None:
        os.kill(child_of(self.processes[rank].pid), signal.SIGKILL)

    def wait(self, timeout: float) -> list[int]:
        """Exit statuses, by rank; subprocess.TimeoutExpired after `timeout` seconds for any."""
        return [process.wait(timeout) for process in self.processes]

    def report(self) -> str:
        """All that the ranks wrote, for a test's message."""
        return "\n".join(f"--- rank {rank}\n{self.out(rank)}{self.err(rank)}" for rank in range(len(self.processes)))

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for rank, process in enumerate(self.processes):
            if process.poll() is None:
                with suppress(ProcessLookupError, ValueError):  # it has ended meanwhile, or not begun
                    self.kill(rank)
                process.kill()
        for process in self.processes:
            process.wait()
