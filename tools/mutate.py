"""Put bugs into the code, one at a time, and see whether the tests find them.

python tools/mutate.py --seed 0 --count 60 -o FILE.json
python tools/mutate.py --seed 0 --count 60 --list          only show what is drawn

Bugs are drawn with a seed, as many in each package: another operator or constant, a condition
turned round, a statement left out. Each is put into a copy of the checkout, and the tests that
`make test` runs are run there, up to the first failure: first those that execute the changed
function, fast ones first, then all others. Which test executes what is recorded once, in a run of
all tests without a bug (a few minutes), and kept in build/mutate/. A bug that no test finds is
missed, or changes nothing that can be seen; only reading tells.

Strings, messages of errors, annotations and decorators are left alone, and so are kernels in C and
Triton: `make test` does not compile them.
"""

import argparse
import ast
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mutate_plugin import recorded

ROOT = Path(__file__).parents[1]
PACKAGES = ("ops", "rules", "files", "training", "results")
COPIED = ("src", "tests", "tools", "study", "docs", "benchmarks", "examples", "scripts")
"""Folders that tests read."""
FIRST = 300
"""Tests that run before all others, which need two processes."""
FAILED = re.compile(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", flags=re.MULTILINE)
"""How pytest names a test that fails."""
NAMES = {"min": "max", "amin": "amax", "any": "all", "argmin": "argmax", "zeros": "ones"}
NAMES |= {"ceil": "floor", "minimum": "maximum", "append": "extend"}
NAMES |= {second: first for first, second in NAMES.items()}
OPERATORS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.Pow: ("**", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}


@dataclass(frozen=True)
class Bug:
    """One change of one file."""

    file: str
    line: int
    begin: int
    end: int
    """Bytes of the file that are replaced."""
    old: str
    new: str
    function: str
    """file:line of the function that is changed; only the file outside of functions."""


def bugs(path: Path, name: str) -> list[Bug]:
    """Return all bugs that can be put into a file."""
    return list(_Finder(path.read_bytes(), name).found())


class _Finder:
    """Goes through the syntax of a file; positions of `ast` are bytes of a line."""

    def __init__(self, content: bytes, name: str) -> None:
        self.content, self.name = content, name
        lines = content.splitlines(keepends=True)
        self.starts = [0]
        for line in lines:
            self.starts.append(self.starts[-1] + len(line))

    def found(self) -> Iterator[Bug]:
        yield from self._inside(ast.parse(self.content), self.name)

    def _inside(self, node: ast.AST, function: str) -> Iterator[Bug]:
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            function = f"{self.name}:{first}"
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list", "bases", "type_params"):
                continue
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, ast.AST) and not isinstance(each, ast.Raise | ast.JoinedStr):
                    for begin, end, new in self._changes(each):
                        yield self._bug(begin, end, new, each, function)
                    yield from self._inside(each, function)

    def _bug(self, begin: int, end: int, new: str, node: Any, function: str) -> Bug:
        old = self.content[begin:end].decode()
        return Bug(self.name, node.lineno, begin, end, old, new, function)

    def _span(self, node: Any) -> tuple[int, int]:
        begin = self.starts[node.lineno - 1] + node.col_offset
        return begin, self.starts[node.end_lineno - 1] + node.end_col_offset

    def _changes(self, node: ast.AST) -> Iterator[tuple[int, int, str]]:
        """Yield what can be written instead of a node or of a part of it."""
        yield from self._of_operators(node)
        yield from self._of_values(node)
        match node:
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
                if not (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"):
                    yield (*self._span(test), f"(not ({self._text(test)}))")
            case ast.Expr(value=ast.Call()) | ast.AugAssign():
                yield (*self._span(node), "pass")
            case ast.Break():
                yield (*self._span(node), "continue")
            case ast.Continue():
                yield (*self._span(node), "break")

    def _of_operators(self, node: ast.AST) -> Iterator[tuple[int, int, str]]:
        match node:
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                yield from self._operator(left, operator, right)
            case ast.BinOp(left=left, op=operator, right=right) if not _is_text(left, right):
                yield from self._operator(left, operator, right)
            case ast.BoolOp(op=operator, values=[left, right, *_]):
                yield from self._operator(left, operator, right)
            case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
                yield (*self._span(node), f"({self._text(operand)})")

    def _of_values(self, node: ast.AST) -> Iterator[tuple[int, int, str]]:
        match node:
            case ast.Constant(value=bool(value)):
                yield (*self._span(node), str(not value))
            case ast.Constant(value=int(value)):
                yield (*self._span(node), str(value + 1))
            case ast.Constant(value=float(value)):
                yield (*self._span(node), repr(2 * value or 1.0))
            case ast.Name(id=name) if name in NAMES:
                yield (*self._span(node), NAMES[name])
            case ast.Attribute(attr=name) if name in NAMES:
                _, end = self._span(node)
                yield end - len(name), end, NAMES[name]

    def _operator(self, left: Any, operator: ast.AST, right: Any) -> Iterator[tuple[int, int, str]]:
        if type(operator) not in OPERATORS:
            return
        old, new = OPERATORS[type(operator)]
        start, end = self._span(left)[1], self._span(right)[0]
        found = re.search(
            rb"\s+".join(map(re.escape, old.encode().split())), self.content[start:end]
        )
        if found:
            yield start + found.start(), start + found.end(), new

    def _text(self, node: Any) -> str:
        begin, end = self._span(node)
        return self.content[begin:end].decode()


def _is_text(*nodes: ast.AST) -> bool:
    return any(
        isinstance(each, ast.JoinedStr | ast.List | ast.Tuple)
        or (isinstance(each, ast.Constant) and isinstance(each.value, str))
        for each in nodes
    )


def draw(root: Path, seed: int, count: int) -> list[Bug]:
    """Draw bugs, from one package after the other; none twice."""
    chance = random.Random(seed)
    by_package: dict[str, list[Bug]] = {}
    for package in PACKAGES:
        paths = sorted((root / "src" / "outvote" / package).rglob("*.py"))
        names = [path.relative_to(root).as_posix() for path in paths]
        kept = [name for name in names if "triton" not in name]
        every = [bug for name in kept for bug in bugs(root / name, name)]
        by_package[package] = chance.sample(every, min(len(every), count))
    rows = [by_package[PACKAGES[k % len(PACKAGES)]][k // len(PACKAGES)] for k in range(count)]
    return sorted(rows, key=lambda bug: (bug.file, bug.begin))


class Checkout:
    """A copy of the checkout in which bugs are put, and the tests are run."""

    def __init__(self, folder: Path, tests: list[str]) -> None:
        """Copy what tests read, and record what each of the tests executes."""
        self.root, self.records, self.tests = folder / "copy", folder, tests
        shutil.rmtree(self.root, ignore_errors=True)
        skip = shutil.ignore_patterns("__pycache__", "node_modules")
        for name in COPIED:
            shutil.copytree(ROOT / name, self.root / name, ignore=skip, symlinks=True)
        for path in ROOT.iterdir():
            if path.is_file() and path.name != ".git":
                shutil.copy2(path, self.root)
        self.executed, self.seconds = self._record()

    def put(self, bug: Bug | None, name: str, original: bytes) -> None:
        """Write a file with a bug, or as it was; bytecode is dated by the second only."""
        path = self.root / name
        changed = original
        if bug is not None:
            changed = original[: bug.begin] + bug.new.encode() + original[bug.end :]
        path.write_bytes(changed)
        for each in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            each.unlink()

    def verdict(self, bug: Bug) -> dict[str, Any]:
        """Return a bug and the first test that found it; none did, if `test` is empty."""
        original = (self.root / bug.file).read_bytes()
        near = [test for test, seen in self.executed.items() if bug.function in seen]
        near.sort(key=lambda test: self.seconds[test])
        first = near[:FIRST]
        others = [*near[FIRST:], *sorted(set(self.seconds) - set(near))]
        began = time.monotonic()
        self.put(bug, bug.file, original)
        try:
            test = self._first_failure(first, []) if first else ""
            test = test or self._first_failure(others, ["-n", "2"])
        finally:
            self.put(None, bug.file, original)
        return {**asdict(bug), "test": test, "seconds": round(time.monotonic() - began)}

    def _first_failure(self, tests: list[str], words: list[str]) -> str:
        wanted = self.records / "wanted.json"
        wanted.write_text(json.dumps(tests), encoding="utf-8")
        limit = 120 + 3 * sum(self.seconds[test] for test in tests)
        files = sorted({test.partition("::")[0] for test in tests})
        try:
            done = self._pytest(["-x", *words, *files], limit, OUTVOTE_WANTED_TESTS=str(wanted))
        except subprocess.TimeoutExpired:
            return "too slow"
        if done.returncode == 0:
            return ""
        failed = FAILED.findall(done.stdout)
        return failed[0] if failed else f"pytest ended with {done.returncode}"

    def _record(self) -> tuple[dict[str, set[str]], dict[str, float]]:
        """Return what each test executes and how long it takes, from a run without a bug.

        A run that was ended is continued by the next call.
        """
        folder = self.records / f"executed-{self._checksum()}"
        folder.mkdir(exist_ok=True)
        done = self._pytest(["-n", "2", *self.tests], 7200, OUTVOTE_RECORD_TESTS=str(folder))
        if done.returncode not in (0, 1, 5):  # 5: all are recorded.
            log = folder / "pytest.log"
            log.write_text(done.stdout + done.stderr, encoding="utf-8")
            raise SystemExit(f"pytest ended with {done.returncode}, see {log}; call again to go on")
        rows = recorded(folder)
        failing = [test for test, row in rows.items() if row["fails"]]
        sys.stdout.writelines(f"left out, it fails without a bug: {test}\n" for test in failing)
        kept = {test: row for test, row in rows.items() if not row["fails"]}
        executed = {test: set(row["functions"]) for test, row in kept.items()}
        return executed, {test: row["seconds"] for test, row in kept.items()}

    def _checksum(self) -> str:
        files = sorted([*self.root.glob("src/**/*.py"), *self.root.glob("tests/**/*.py")])
        contents = [path.read_bytes() for path in files]
        total = hashlib.sha256(b"".join([*contents, repr(self.tests).encode()]))
        return total.hexdigest()[:12]

    def _pytest(self, words: list[str], limit: float, **variables: str) -> Any:
        """Run tests in the copy, with the plugin in mutate_plugin.py."""
        own = {"PYTHONPATH": f"{self.root / 'src'}:{self.root / 'tools'}", "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "mutate_plugin", *words],
            cwd=self.root,
            env=os.environ | own | variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit,
        )


def main(words: list[str] | None = None) -> int:
    """Draw bugs, and run the tests on each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--list", action="store_true", help="show the bugs, run nothing")
    parser.add_argument("--tests", nargs="+", default=[], help="instead of all that are fast")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "build" / "mutate.json")
    options = parser.parse_args(words)
    drawn = draw(ROOT, options.seed, options.count)
    if options.list:
        sys.stdout.writelines(f"{_shown(asdict(bug))}\n" for bug in drawn)
        return 0
    folder = ROOT / "build" / "mutate"
    folder.mkdir(parents=True, exist_ok=True)
    checkout = Checkout(folder, options.tests)
    found: list[dict[str, Any]] = []
    for bug in drawn:
        found.append(checkout.verdict(bug))
        sys.stdout.write(f"{found[-1]['test'] or 'MISSED'}: {_shown(found[-1])}\n")
        sys.stdout.flush()
        options.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    missed = [each for each in found if not each["test"]]
    sys.stdout.write(f"{len(found) - len(missed)} of {len(found)} found, {len(missed)} missed\n")
    return 0


def _shown(bug: dict[str, Any]) -> str:
    old, new = (" ".join(bug[key].split()) for key in ("old", "new"))
    return f"{bug['file']}:{bug['line']}: {old!r} -> {new!r}"


if __name__ == "__main__":
    raise SystemExit(main())
