"""Run the program inside the test process: torch is loaded once for all tests."""

import json
from dataclasses import dataclass

from outvote.cli import main


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        """The output as strict JSON: NaN and Infinity are errors."""

        def refuse(token):
            raise AssertionError(f"not JSON: {token}")

        return json.loads(self.out, parse_constant=refuse)

    def assert_fails(self, code, *words):
        """The exit code, exactly one line on stderr with all words, nothing on stdout."""
        assert (self.code, self.out) == (code, "")
        assert self.err.endswith("\n")
        assert self.err.count("\n") == 1, self.err
        for word in words:
            assert word in self.err


def run(capsys, *words):
    """Run `outvote words...`."""
    capsys.readouterr()
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return Result(code, captured.out, captured.err)
