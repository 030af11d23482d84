"""`outvote watch`: a page that follows runs, for who knows its address."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from audit_logs import line, write_log
from command_line import run
from made_results import write_store
from outvote.report import watch
from outvote.report.watch import WatchedPage, WatchServer
from outvote.results.audit_log import ClientRecord

SETTINGS = {"rule": ["median", "gas(median)"], "attack": ["none", "lie"], "rounds": 20}


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(watch, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(watch, "REST", 0.0)


@contextmanager
def serving(*paths):
    with WatchServer(WatchedPage(paths, command="outvote watch runs")) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(server, path=None, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    try:
        where = f"/{server.token}/" if path is None else path
        connection.request(method, where, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), dict(answer.getheaders())
    finally:
        connection.close()


def version_of(server):
    return ask(server, f"/{server.token}/version")[1]


def replaced(root, **given):
    """Other rounds of the same runs, as if they had gone on: all at once, no half is seen."""
    write_store(root.with_name("new"), SETTINGS, **given)
    root.rename(root.with_name("old"))
    root.with_name("new").rename(root)


def test_the_page_waits_for_the_first_run_and_follows(tmp_path):
    root = tmp_path / "runs"
    root.mkdir()
    with serving(root) as server:
        assert "No run has begun yet" in ask(server)[1]
        write_store(root, SETTINGS, seeds=1, rounds=5)
        first = version_of(server)
        status, page, _ = ask(server)
        assert status == 200
        assert f'data-version="{first}"' in page
        assert "<dt>Rounds</dt><dd>20</dd>" in page  # Four runs of five rounds.
        assert version_of(server) == first
        replaced(root, seeds=1)
        assert version_of(server) != first
        assert "<dt>Rounds</dt><dd>80</dd>" in ask(server)[1]


def test_only_who_knows_the_address_sees_the_page(tmp_path):
    write_store(tmp_path / "runs", SETTINGS, seeds=1)
    with serving(tmp_path / "runs") as server:
        assert server.server_address[0] == "127.0.0.1"
        token = server.token
        assert len(token) > 20
        wrong = ("/", "/x/", f"/{token}", f"/{token}/../etc", f"/{token}/x", "/" + "a" * 5000)
        for path in (*wrong, f"/{token[:-1]}/", f"/{token}x/", "/%00/", "//"):
            status, text, _ = ask(server, path)
            assert status == 404, path
            assert "<html" not in text
        status, text, _ = ask(server, Host=f"evil.example:{server.server_port}")
        assert (status, "<html" in text) == (403, False)
        assert ask(server, Host=f"localhost:{server.server_port}")[0] == 200
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert ask(server, method=method)[0] == 501
        status, text, headers = ask(server, method="HEAD")
        assert (status, text) == (200, "")
        assert headers["Cache-Control"] == "no-store"
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "Python" not in headers["Server"]


def test_a_server_outlives_garbage(tmp_path):
    write_store(tmp_path / "runs", SETTINGS, seeds=1)
    with serving(tmp_path / "runs") as server:
        for garbage in (b"", b"\r\n\r\n", b"GET\r\n\r\n", b"\xff\xfe\x00" * 99 + b"\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", server.server_port)) as found:
                found.sendall(garbage)
        assert ask(server)[0] == 200


def test_what_fails_is_answered_and_the_server_goes_on(tmp_path, monkeypatch):
    write_store(tmp_path / "runs", SETTINGS, seeds=1)
    with serving(tmp_path / "runs") as server:
        with monkeypatch.context() as patch:
            patch.setattr(watch, "collect", lambda *_: 1 / 0)
            assert ask(server)[:2] == (500, "ZeroDivisionError: division by zero\n")
        assert ask(server)[0] == 200


def records(number):
    return [
        ClientRecord(client=str(k), standing="aggregated", score=1.0 + k) for k in range(number)
    ]


def test_the_log_of_a_server_is_followed(tmp_path):
    log = tmp_path / "log"
    write_log(log, [line(1, *records(3))])
    with serving(log) as server:
        page = ask(server)[1]
        assert "Audit of log" in page
        assert "<dt>Rounds</dt><dd>1</dd>" in page
        write_log(log, [line(1, *records(3)), line(2, *records(4))])
        page = ask(server)[1]
        assert "<dt>Rounds</dt><dd>2</dd>" in page
        assert "<dt>Clients</dt><dd>4</dd>" in page


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_from_the_command_line(tmp_path, number):
    write_store(tmp_path / "runs", SETTINGS, seeds=1)
    # In the background, shells let programs ignore Ctrl-C.
    ignores = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN);"
    starts = "from outvote.cli import main; raise SystemExit(main())"
    words = [sys.executable, "-c", ignores + starts]
    with subprocess.Popen(
        [*words, "watch", str(tmp_path / "runs"), "--json"],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        text = process.stdout.readline()
        while not text.rstrip().endswith("}"):
            text += process.stdout.readline()
        host, port, token = re.fullmatch(
            r"http://([\d.]+):(\d+)/([\w-]+)/", json.loads(text)["address"]
        ).groups()
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        connection.request("GET", f"/{token}/")
        assert connection.getresponse().status == 200
        connection.close()
        process.send_signal(number)
        try:
            assert process.wait(30) == 0
        finally:
            process.kill()


def test_wrong_use(capsys, tmp_path):
    found = run(capsys, "watch", tmp_path / "nothing")
    assert (found.code, "there is no file or folder" in found.err) == (2, True)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        found = run(capsys, "watch", tmp_path, "--port", str(taken.getsockname()[1]))
    assert (found.code, "give another --port" in found.err) == (1, True)
