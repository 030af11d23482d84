"""An extension of griffe: doctests and literal blocks of docstrings become code of Markdown."""

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"(?:^|(?<=\n))(>>> .*(?:\n(?!\n).*)*)")
_LITERAL = re.compile(r"::\n\n((?:    .*\n|\n)*    .*)")


def fenced(text: str) -> str:
    """Return a docstring whose doctests and blocks after "::" are fenced."""
    text = _LITERAL.sub(lambda match: f"\n```python\n{_dedented(match[1])}\n```", text)
    return _DOCTEST.sub(r"```pycon\n\1\n```", text)


def _dedented(text: str) -> str:
    return "\n".join(line.removeprefix("    ") for line in text.splitlines())


class DocstringBlocks(griffe.Extension):
    """Change every docstring when it is loaded."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fence the examples of one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
