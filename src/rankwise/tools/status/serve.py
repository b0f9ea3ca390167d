"""The state of the jobs as a web page on the loopback interface, for those who know its token.

    GET /          the page, which asks for the next one twice a second
    GET /jobs      its content, as HTML
    GET /json      as `rankwise status --json`
    GET /metrics   as `rankwise status --prometheus`

All but the page, which says nothing about a job, need the header `Authorization: Bearer TOKEN` (RFC 6750). A request
for another host name than the loopback interface's is refused, so no page of another site can read an answer by giving
its own name this address (DNS rebinding).
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import stat
from collections.abc import Callable, Sequence
from html import escape
from http.server import BaseHTTPRequestHandler
from importlib.resources import files
from socketserver import ThreadingTCPServer

from rankwise.observe.jobs import RunningJob
from rankwise.tools.layout import one_line
from rankwise.tools.status.table import HEAD, MISSING, NONE_JOINED, as_json, as_prometheus, table

HOST = "127.0.0.1"
WIDTH = 160  # characters of the command
_NAMES = ("127.0.0.1", "localhost")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_HTML = "text/html; charset=utf-8"

Jobs = Callable[[], Sequence[RunningJob]]
"""The jobs of this moment. ProcessLookupError or PermissionError as observe.jobs raises them."""


class Server(ThreadingTCPServer):
    """Answers until it is shut down. port: 0 takes a free one."""

    daemon_threads = True
    allow_reuse_address = True  # the port is free again as soon as the server has ended

    def __init__(self, port: int, token: str, jobs: Jobs) -> None:
        self.token = token
        self.jobs = jobs
        super().__init__((HOST, port), _Handler)

    @property
    def address(self) -> str:
        """What to open in a browser."""
        return f"http://{HOST}:{self.server_address[1]}/#{self.token}"


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = 30  # seconds that a client may take to send its request
    server_version = "rankwise"
    sys_version = ""

    def do_GET(self) -> None:
        host = self.headers.get("Host", "").partition(":")[0]
        if host not in _NAMES:
            return self._answer(403, f"the host {host!r} is not this server: expected {' or '.join(_NAMES)}")
        if self.path == "/":
            return self._answer(200, files(__package__).joinpath("page.html").read_text(encoding="utf-8"), _HTML)
        if self.path not in ("/jobs", "/json", "/metrics"):
            return self._answer(404, f"there is no {self.path}: expected /, /jobs, /json or /metrics")
        given = self.headers.get("Authorization", "").encode("utf-8", "replace")
        if not hmac.compare_digest(given, f"Bearer {self.server.token}".encode()):
            return self._answer(401, "the token is missing or wrong: open the address that rankwise status has printed")
        try:
            jobs = self.server.jobs()
        except (ProcessLookupError, PermissionError) as error:
            return self._answer(404, str(error))
        if self.path == "/json":
            return self._answer(200, json.dumps([as_json(job) for job in jobs]), "application/json")
        if self.path == "/jobs":
            return self._answer(200, jobs_as_html(jobs), _HTML)
        try:
            return self._answer(200, as_prometheus(jobs), "text/plain; version=0.0.4; charset=utf-8")
        except ImportError:
            return self._answer(501, f"/metrics {MISSING}")

    def _answer(self, status: int, text: str, kind: str = "text/plain; charset=utf-8") -> None:
        body = text.encode()
        self.send_response(status)
        headers = {"Content-Type": kind, "Content-Length": str(len(body)), **_HEADERS}
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        for header in headers.items():
            self.send_header(*header)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  # http.server's name
        """Requests come twice a second: they are not worth a line each."""


def jobs_as_html(jobs: Sequence[RunningJob]) -> str:
    """A title and a table for each job."""
    lines = []
    for job in jobs:
        now = table(job)
        lines += [
            f"<h2>{escape(now.title)}<code>{escape(one_line(now.command, WIDTH))}</code></h2>",
            '<div class="wide"><table><thead><tr>',
        ]
        lines += [f"<th>{escape(cell)}</th>" for cell in HEAD]
        lines.append("</tr></thead><tbody>")
        for row, awaited in zip(now.rows, now.awaited, strict=True):
            cells = "".join(f"<td>{escape(cell.strip())}</td>" for cell in row)
            lines.append(f'<tr class="awaited">{cells}</tr>' if awaited else f"<tr>{cells}</tr>")
        lines.append("</tbody></table></div>")
        if any(now.awaited):
            lines.append("<p>Others wait for the ranks marked with &gt;.</p>")
        if not now.joined:
            lines.append(f"<p>{escape(NONE_JOINED)}</p>")
    return "\n".join(lines) or "<p>No job of this user runs.</p>"


def token_of(path: str | None) -> str:
    """A new token, or the one in this file; if there is no such file, it is made, readable by its user alone.

    ValueError if other users can read or change the file, or if it holds no token of at least 16 letters and digits;
    OSError if it cannot be read or made.
    """
    if path is None:
        return secrets.token_urlsafe(16)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        with open(path, encoding="utf-8") as file:
            info = os.fstat(file.fileno())
            token = file.read().strip()
        mode = stat.S_IMODE(info.st_mode)
        if info.st_uid != os.geteuid() or mode & 0o077:
            raise ValueError(
                f"{path} belongs to user {info.st_uid} and has the mode {mode:04o}: expected a file of this user that "
                "nobody else can read or write (chmod 600), with a token that nobody else has seen"
            ) from None
        if len(token) < 16 or not token.replace("-", "").replace("_", "").isalnum() or not token.isascii():
            raise ValueError(f"{path} holds no token: expected at least 16 letters, digits, - or _") from None
        return token
    token = secrets.token_urlsafe(16)
    with os.fdopen(descriptor, "w") as file:
        file.write(token + "\n")
    return token
