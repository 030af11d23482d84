"""Text that is safe to show: control characters escaped, and tables as HTML for notebooks."""

from collections.abc import Sequence
from html import escape

CELL = "text-align: {}; padding: 2px 8px"


class Bold(str):
    """The text of a cell that is printed bold."""

    __slots__ = ()


def clean(text: str) -> str:
    """Escape control characters, which a file name may hold."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def html_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    num_text: int = 1,
    title: str = "",
    note: str = "",
) -> str:
    """Return a table as HTML: no script, no style sheet, and every text escaped.

    The first `num_text` columns are aligned left, the others, which hold numbers, right.

    >>> html_table(["rule"], [["<b>"]])
    '<table><thead><tr><th style="text-align: left; padding: 2px 8px">rule</th></tr></thead>\
<tbody><tr><td style="text-align: left; padding: 2px 8px">&lt;b&gt;</td></tr></tbody></table>'
    """
    sides = ["left" if number < num_text else "right" for number in range(len(columns))]
    head = _line("th", columns, sides)
    body = "".join(_line("td", row, sides) for row in rows)
    return (
        _paragraph(title)
        + f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"
        + _paragraph(note)
    )


def text_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, num_text: int = 1
) -> list[str]:
    """Return the lines of a table as text; the first `num_text` columns are aligned left.

    >>> text_table(["rule", "best"], [["krum", "5"]])
    ['rule  best', 'krum     5']
    """
    lines = [columns, *rows]
    widths = [max(len(line[k]) for line in lines) for k in range(len(columns))]
    return [
        "  ".join(
            cell.ljust(width) if k < num_text else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def _line(tag: str, cells: Sequence[str], sides: Sequence[str]) -> str:
    written = (
        f'<{tag} style="{CELL.format(side)}">{_cell(cell)}</{tag}>'
        for cell, side in zip(cells, sides, strict=True)
    )
    return f"<tr>{''.join(written)}</tr>"


def _cell(text: str) -> str:
    return f"<strong>{_escaped(text)}</strong>" if isinstance(text, Bold) else _escaped(text)


def _paragraph(text: str) -> str:
    return f"<p>{_escaped(text)}</p>" if text else ""


def _escaped(text: str) -> str:
    return escape(clean(text))
