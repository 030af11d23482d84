"""Ctrl-C and SIGTERM: the round is finished and saved; a second signal ends at once."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Asked:
    """Which signal asked to stop, if any."""

    def __init__(self) -> None:
        """Begin without one."""
        self.number = 0

    def __call__(self) -> bool:
        """Tell whether to stop."""
        return self.number != 0

    @property
    def exit_code(self) -> int:
        """What a shell reports of a program that was ended by the signal."""
        return 128 + self.number

    def hear(self, number: int, frame: FrameType | None) -> None:
        """Remember the first signal; end at the second."""
        del frame
        if self.number:
            raise KeyboardInterrupt
        self.number = number


@contextmanager
def listening() -> Iterator[Asked]:
    """Take the signals, and give them back."""
    asked = Asked()
    before = {number: signal.signal(number, asked.hear) for number in SIGNALS}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
