"""Signals that ask to save and stop."""

import signal
from threading import current_thread, main_thread
from types import FrameType
from typing import final

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@final
class StopSignal:
    """Ctrl-C and SIGTERM: the first asks to save and stop, the second ends at once."""

    def __init__(self) -> None:
        """Start without a signal."""
        self.number = 0

    def __enter__(self) -> "StopSignal":
        """Take the signals; only the main thread can."""
        numbers = SIGNALS if current_thread() is main_thread() else ()
        self.before = {number: signal.signal(number, self._receive) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        """Give the signals back."""
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def __call__(self) -> bool:
        """Return whether to stop."""
        return self.number != 0

    @property
    def exit_code(self) -> int:
        """The code that a shell reports for the signal; 0 without one."""
        return 128 + self.number if self.number else 0

    def _receive(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.number:
            raise KeyboardInterrupt
        self.number = number
