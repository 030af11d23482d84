"""Signals that ask to save and stop."""

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from threading import Thread, current_thread, main_thread
from types import FrameType
from typing import Any, final

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SECONDS_TO_RECEIVE = 0.5


class Aborted(KeyboardInterrupt):
    """The second signal: the program ends at once, and the last checkpoints stay."""

    def __init__(self, number: int) -> None:
        super().__init__("aborted; the last checkpoints are intact")
        self.exit_code = 128 + number


@final
class StopSignal:
    """Ctrl-C and SIGTERM: the first asks to save and stop, the second ends at once."""

    def __init__(self, describe: Callable[[], str] | None = None) -> None:
        """Start without a signal; `describe` returns what is printed on the first one."""
        self.number = 0
        self.before: dict[int, Any] = {}
        self._num_received = 0
        self._describe = describe
        self._ends: tuple[socket.socket, socket.socket] | None = None

    def __enter__(self) -> "StopSignal":
        """Take the signals; only the main thread can."""
        numbers = SIGNALS if current_thread() is main_thread() else ()
        if numbers and self._describe is not None:
            self._answer_at_once()
        for number in numbers:
            self.before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        """Give the signals back."""
        for number, handler in self.before.items():
            signal.signal(number, handler)
        if self._ends is not None:
            signal.set_wakeup_fd(self._before_fd)
            for each in self._ends:
                each.close()
            self._ends = None

    def __call__(self) -> bool:
        """Return whether to stop."""
        return self.number != 0

    @property
    def exit_code(self) -> int:
        """The code that a shell reports for the signal; 0 without one."""
        return 128 + self.number if self.number else 0

    def _receive(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._num_received += 1
        if self.number:
            raise Aborted(number)
        self.number = number

    def _answer_at_once(self) -> None:
        """Print from a thread: the main one may be within a long call of torch."""
        ours, theirs = self._ends = socket.socketpair()
        theirs.setblocking(False)
        self._before_fd = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        Thread(target=self._answer, args=(ours,), daemon=True).start()

    def _answer(self, ours: socket.socket) -> None:
        try:
            if not _next_signal(ours):
                return
            text = self._describe() if self._describe is not None else ""
            # Not by print: the main thread may hold the lock of the stream.
            os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"\n{text}\n".encode())
            number = _next_signal(ours)
            # Python calls a handler once for signals that arrive before it could: in a long call
            # of torch, say, after which it receives both as one.
            while self._num_received == 0:
                time.sleep(SECONDS_TO_RECEIVE / 10)
            time.sleep(SECONDS_TO_RECEIVE)
            identity = main_thread().ident
            if number and identity is not None and self._num_received == 1:
                signal.pthread_kill(identity, number)
        except OSError:  # Closed: the runs are over.
            return


def _next_signal(ours: socket.socket) -> int:
    """Wait for one of the signals, and return its number; 0: closed."""
    while received := ours.recv(1):
        if received[0] in SIGNALS:
            return received[0]
    return 0
