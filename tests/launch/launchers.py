"""Launchers of a job on several nodes, all on this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import IO

HOST = socket.gethostname()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


class Launchers:
    """Runs `rankwise run` for each node. node: --node-rank; n: -n."""

    def __init__(self) -> None:
        self.port = free_port()
        self.processes: list[subprocess.Popen[str]] = []

    def start(
        self,
        nnodes: int,
        node: int,
        n: int,
        *words: str,
        files: int | None = None,
        given: IO[str] | None = None,
        **environment: str,
    ) -> subprocess.Popen[str]:
        """files: how many files the launcher may open. given: its standard input."""
        limit = [] if files is None else ["sh", "-c", f'ulimit -n {files} && exec "$@"', "sh"]
        where = ["--nnodes", str(nnodes), "--node-rank", str(node), "--rendezvous", f"127.0.0.1:{self.port}"]
        self.processes.append(
            subprocess.Popen(
                [*limit, sys.executable, "-m", "rankwise", "run", *where, "-n", str(n), *words],
                stdin=given or subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, **environment},
            )
        )
        return self.processes[-1]

    def finish(self) -> tuple[list[int], list[str], list[str]]:
        """Exit codes, outputs and errors, in the order in which the launchers were started."""
        pairs = [process.communicate(timeout=150) for process in self.processes]
        return [process.returncode for process in self.processes], [out for out, _ in pairs], [err for _, err in pairs]
