"""A real browser for tests: headless Chromium, driven through a pipe, without a network."""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
TIMEOUT = 60.0
# Chromium reads commands from file 3 and answers on file 4.
LAUNCH = """
import fcntl, os, sys
reads, writes = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3])
os.dup2(reads, 3)
os.dup2(writes, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_browser() -> str | None:
    """The path of a Chromium; None if there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page of one Chromium; what it logs, throws and asks the network for is kept."""

    def __init__(self, folder: Path, *, width=1280, height=900, is_dark=False):
        program = find_browser()
        assert program is not None
        commands_out, self._write = os.pipe()
        self._read, answers_in = os.pipe()
        words = [
            program,
            "--headless=new",
            "--remote-debugging-pipe",
            f"--user-data-dir={folder}",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--no-first-run",
            f"--window-size={width},{height}",
        ]
        if os.geteuid() == 0:
            words.append("--no-sandbox")
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(commands_out), str(answers_in), *words],
            pass_fds=(commands_out, answers_in),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands_out)
        os.close(answers_in)
        self._rest, self._number, self._session = b"", 0, None
        self.events: list[dict] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        self.prefer(is_dark=is_dark)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._session = None
        try:
            self._send("Browser.close")
            self._process.wait(10)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        finally:
            os.close(self._read)
            os.close(self._write)

    def open(self, path: Path, fragment: str = "") -> None:
        """Open a file from disk, and wait until its script has run."""
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri() + fragment)
        self.wait("document.documentElement?.dataset.ready === 'yes'")

    def evaluate(self, expression: str):
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, expression: str) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + TIMEOUT
        while not self._is_true(expression):
            assert time.monotonic() < end, f"never true: {expression}; {self.faults()}"
            time.sleep(0.05)

    def _is_true(self, expression: str) -> bool:
        """Whether an expression is true; false while a page is being loaded again."""
        number = self._send("Runtime.evaluate", expression=expression, returnByValue=True)
        answer = self._answer(number)
        if "navigated" in answer.get("error", {}).get("message", ""):
            return False
        assert "error" not in answer, answer
        assert "exceptionDetails" not in answer["result"], answer
        return bool(answer["result"]["result"].get("value"))

    def texts(self, selector: str) -> list[str]:
        """The texts of the elements, as a reader sees them."""
        return self.evaluate(
            f"[...document.querySelectorAll({json.dumps(selector)})].map(each => each.innerText)"
        )

    def click(self, selector: str) -> None:
        """Press and release the mouse in the middle of an element."""
        place = self.evaluate(
            f"(() => {{ const node = document.querySelector({json.dumps(selector)});"
            "node.scrollIntoView({block: 'center', inline: 'center'});"
            "const box = node.getBoundingClientRect();"
            "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        where = {"x": place[0], "y": place[1], "button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type="mousePressed", **where)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", **where)

    def press(self, key: str, text: str = "") -> None:
        """Press and release a key."""
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, text=text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)

    def hide_scrollbars(self) -> None:
        """Leave the bars out of screenshots."""
        self.call("Emulation.setScrollbarsHidden", hidden=True)

    def resize(self, width: int, height: int, scale: float = 1.0) -> None:
        """Set the size of the window."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=False,
        )

    def prefer(self, *, is_dark: bool) -> None:
        """Set the colours of the system."""
        value = "dark" if is_dark else "light"
        features = [{"name": "prefers-color-scheme", "value": value}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, path: Path, *, is_whole: bool = False) -> None:
        """Keep an image of the window, or of the whole page."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=is_whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def faults(self) -> list[str]:
        """All that was logged or thrown."""
        found = []
        for event in self.events:
            what, parameters = event["method"], event["params"]
            if what == "Runtime.exceptionThrown":
                found.append(str(parameters["exceptionDetails"]))
            elif what == "Runtime.consoleAPICalled":
                found.append(str(parameters["args"]))
            elif what == "Log.entryAdded":
                found.append(parameters["entry"]["text"])
        return found

    def requests(self) -> list[str]:
        """All addresses that were asked for."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def call(self, method: str, **parameters):
        """Send a command and wait for its answer; events that come before it are kept."""
        answer = self._answer(self._send(method, **parameters))
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def _answer(self, number: int) -> dict:
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                return answer
            if "method" in answer:
                self.events.append(answer)

    def _send(self, method: str, **parameters) -> int:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        content = json.dumps(message).encode() + b"\0"
        while content:
            content = content[os.write(self._write, content) :]
        return self._number

    def _receive(self) -> dict:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], TIMEOUT)
            assert ready, "the browser does not answer"
            piece = os.read(self._read, 1 << 20)
            assert piece, "the browser has ended"
            self._rest += piece
        text, _, self._rest = self._rest.partition(b"\0")
        return json.loads(text)
