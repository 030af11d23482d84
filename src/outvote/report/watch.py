"""The report of runs that go on, served to the browsers of this machine alone."""

import hashlib
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer

from outvote.report.audit import audit_log
from outvote.report.html_report import log_page, report_page
from outvote.results.collect import collect
from outvote.results.disk import StoreError

HOST = "127.0.0.1"
# What the pages are made of; checkpoints and weights are not shown.
SHOWN = (".json", ".jsonl", ".toml", ".npz", ".csv.gz")
LEAST_SECONDS = 1.0
# A page that takes long to make is made less often.
REST = 4.0
WAITING = b"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="2">
<meta name="color-scheme" content="light dark"><title>outvote watch</title></head>
<body><p>No run has begun yet. This page is loaded again every two seconds.</p></body></html>
"""
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class WatchedPage:
    """The page of some runs, or of a server's log, made again when their files have changed."""

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        command: str = "",
        suites: Sequence[str] = (),
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Take folders of runs, exports, or the folder of a server's log."""
        self.paths = [Path(path) for path in paths]
        self._command, self._suites, self._warn = command, suites, warn
        self._lock = threading.Lock()
        self._version, self._page, self._next = "", WAITING, 0.0
        self._warned: set[str] = set()

    def current(self) -> tuple[str, bytes]:
        """Return the version and the page; one that is older than its files soon is replaced."""
        with self._lock:
            started = time.monotonic()
            if started >= self._next:
                version = self._files_version()
                if version != self._version:
                    self._page, self._version = self._made(version), version
                taken = time.monotonic() - started
                self._next = time.monotonic() + max(LEAST_SECONDS, REST * taken)
            return self._version, self._page

    def _made(self, version: str) -> bytes:
        if len(self.paths) == 1 and self.paths[0].is_dir():
            log = audit_log(self.paths[0])
            if log is not None:
                return log_page(log, command=self._command, version=version)
        try:
            results = collect(self.paths, self._warn_once)
        except StoreError:
            return WAITING
        return report_page(results, command=self._command, suites=self._suites, version=version)

    def _warn_once(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            self._warn(message)

    def _files_version(self) -> str:
        """Return a checksum of the names, sizes and times of all files that are shown."""
        found = hashlib.sha256()
        for path in self.paths:
            for each in sorted(_files(path)):
                try:
                    about = each.stat()
                except FileNotFoundError:
                    continue  # Replaced just now: its next version is seen the next time.
                found.update(f"{each}\0{about.st_size}\0{about.st_mtime_ns}\0".encode())
        return found.hexdigest()[:16]


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    for folder, folders, files in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(folder, name) for name in files if name.endswith(SHOWN))


class WatchServer(ThreadingHTTPServer):
    """Serves a page to who knows its address, which has a secret in it; nothing can be changed."""

    daemon_threads = True

    def __init__(self, page: WatchedPage, port: int = 0) -> None:
        """Listen on a port of this machine; 0: any that is free."""
        self.page, self.token = page, secrets.token_urlsafe(16)
        super().__init__((HOST, port), _Handler)

    def server_bind(self) -> None:
        """Bind without a look for the name of the machine, which may wait for a network."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]

    @property
    def address(self) -> str:
        """What to open in a browser."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer
    server_version, sys_version = "outvote", ""
    timeout = 30

    def do_GET(self) -> None:
        """Answer with the page, or its version."""
        # A page of another site could find this server under a name of its own.
        hosts = {f"{name}:{self.server.server_port}" for name in (HOST, "localhost")}
        if self.headers.get("Host") not in hosts:
            self._send(HTTPStatus.FORBIDDEN, b"Open the address that outvote watch printed.\n")
            return
        token, slash, rest = self.path.removeprefix("/").partition("/")
        is_known = secrets.compare_digest(token.encode(), self.server.token.encode())
        if not (is_known and slash) or rest not in ("", "version"):
            self._send(HTTPStatus.NOT_FOUND, b"Open the address that outvote watch printed.\n")
            return
        try:
            version, page = self.server.page.current()
        except Exception as error:  # noqa: BLE001  (the server goes on, and answers what is wrong)
            message = f"{type(error).__name__}: {error}\n"
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, message.encode())
            return
        if rest == "version":
            self._send(HTTPStatus.OK, version.encode())
        else:
            self._send(HTTPStatus.OK, page, kind="text/html; charset=utf-8")

    do_HEAD = do_GET  # noqa: N815  (the name that http.server looks for)

    def _send(
        self, status: HTTPStatus, content: bytes, kind: str = "text/plain; charset=utf-8"
    ) -> None:
        self.send_response(status)
        about = {"Content-Type": kind, "Content-Length": str(len(content))}
        for name, value in (about | HEADERS).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Print nothing: the page asks every two seconds."""
