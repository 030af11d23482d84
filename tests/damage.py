"""Kinds of damage to the folder of a finished run, each a function of it and of another run."""

import json
import shutil
from pathlib import Path


def _cut_lines(path: Path, keep: float) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: int(len(lines) * keep)]))


def _flip(path: Path, place: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(len(content) * place)] ^= 1
    path.write_bytes(bytes(content))


def _cut(path: Path, keep: float = 0.6) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])


def _other_number(path: Path) -> None:
    """Change one accuracy: the file is still valid."""
    lines = path.read_text().splitlines(keepends=True)
    line = json.loads(lines[1])
    line["accuracy"] = 0.9875
    lines[1] = json.dumps(line, separators=(",", ":")) + "\n"
    path.write_text("".join(lines))


def _swap_lines(path: Path) -> None:
    first, second, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([second, first, *rest]))


def _without_line(path: Path) -> None:
    first, _, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([first, *rest]))


def _double_last(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content + content.splitlines(keepends=True)[-1])


def _edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def _of_other(name: str):
    def damage(folder: Path, other: Path) -> None:
        shutil.copyfile(other / name, folder / name)

    return damage


def _link(name: str, make):
    def damage(folder: Path, other: Path) -> None:
        (folder / name).unlink()
        make(folder / name, other / name)

    return damage


def _all_of_other(folder: Path, other: Path) -> None:
    for path in other.iterdir():
        shutil.copyfile(path, folder / path.name)


def _on(name: str, change, *args, **named):
    def damage(folder: Path, other: Path) -> None:
        del other
        change(folder / name, *args, **named)

    return damage


METRICS, AUDIT, STATUS = "metrics.jsonl", "audit.npz", "status.json"
DAMAGE = {
    "metrics: half of the lines": _on(METRICS, _cut_lines, 0.5),
    "metrics: cut in a line": _on(METRICS, _cut),
    "metrics: empty": _on(METRICS, Path.write_bytes, b""),
    "metrics: gone": _on(METRICS, Path.unlink),
    "metrics: another number": _on(METRICS, _other_number),
    "metrics: one bit": _on(METRICS, _flip, 0.7),
    "metrics: a line is missing": _on(METRICS, _without_line),
    "metrics: two lines swapped": _on(METRICS, _swap_lines),
    "metrics: a line twice": _on(METRICS, _double_last),
    "metrics: of another run": _of_other(METRICS),
    "metrics: zeros": _on(METRICS, Path.write_bytes, bytes(3000)),
    "config: gone": _on("config.toml", Path.unlink),
    "config: empty": _on("config.toml", Path.write_bytes, b""),
    "config: one bit": _on("config.toml", _flip, 0.5),
    "config: of another run": _of_other("config.toml"),
    "env: gone": _on("env.json", Path.unlink),
    "env: cut": _on("env.json", _cut),
    "env: another device": _on("env.json", _edit, device="cuda"),
    "audit: gone": _on(AUDIT, Path.unlink),
    "audit: empty": _on(AUDIT, Path.write_bytes, b""),
    "audit: cut": _on(AUDIT, _cut),
    "audit: one bit": _on(AUDIT, _flip, 0.5),
    "audit: text": _on(AUDIT, Path.write_bytes, b"not an archive"),
    "audit: of another run": _of_other(AUDIT),
    "timings: gone": _on("timings.jsonl", Path.unlink),
    "timings: half of the lines": _on("timings.jsonl", _cut_lines, 0.5),
    "status: gone": _on(STATUS, Path.unlink),
    "status: empty": _on(STATUS, Path.write_bytes, b""),
    "status: cut": _on(STATUS, _cut),
    "status: another outcome": _on(STATUS, _edit, outcome="diverged"),
    "status: fewer rounds": _on(STATUS, _edit, round=2, num_rounds=2),
    "status: of another run": _of_other(STATUS),
    "status: interrupted": _on(STATUS, _edit, outcome="interrupted"),
    "status: failed": _on(STATUS, _edit, outcome="failed", reason="of nothing"),
    "status: a newer version": _on(STATUS, _edit, version=3),
    "status: link to another run": _link(STATUS, Path.symlink_to),
    "metrics: link to another run": _link(METRICS, Path.symlink_to),
    "metrics: the file of another run": _link(METRICS, Path.hardlink_to),
    "metrics: link to nothing": _on(METRICS, lambda path: (path.unlink(), path.symlink_to(path))),
    "all files of another run": _all_of_other,
}
"""Whatever changes what a reader of the run sees."""
OF_CHECKPOINT = {
    "checkpoint: cut": _on("checkpoint.safetensors", _cut),
    "checkpoint: one bit": _on("checkpoint.safetensors", _flip, 0.8),
    "checkpoint: of another run": _of_other("checkpoint.safetensors"),
}
"""Tables do not need it."""
