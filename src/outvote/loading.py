"""A user's objects from files: "path.py:name"."""

import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from traceback import walk_tb
from types import CodeType, ModuleType
from typing import Any

from outvote.errors import an

PROJECT = "OUTVOTE_PROJECT"
"""The environment variable of the project's folder."""
MODULE_PREFIX = "outvote_user_"
"""Of the names of modules that are loaded from a user's files."""


class CodeRefused(ValueError):  # noqa: N818  (named like TooManyByzantine)
    """A file of settings names Python code that nobody has allowed to run."""


_allowed: ContextVar[frozenset[Path] | None] = ContextVar("allowed", default=None)
"""The files that may be executed; None: any, as where a program names them itself."""


@contextmanager
def only_code_of(paths: Iterable[Path]) -> Iterator[None]:
    """Refuse all user code but that of some files: for settings that others may have written."""
    before = _allowed.set(frozenset(path.resolve() for path in paths))
    try:
        yield
    finally:
        _allowed.reset(before)


def check_allowed(path_text: str) -> None:
    """Raise a CodeRefused if a user's file must not be executed here."""
    allowed = _allowed.get()
    if allowed is not None and find_file(path_text).resolve() not in allowed:
        raise CodeRefused(
            f"the settings name Python code, {path_text[:200]!r}, which would be executed; if you "
            "trust it, add --allow-code, or name it yourself, as in --rule or --set."
        )


def load_class(where: str, kind: str, *bases: type) -> type[Any]:
    """Load a class from "path.py:ClassName"; it must be a subclass of one of the bases."""
    path_text, _, name = where.rpartition(":")
    found = _load(where, kind)
    wanted = " or ".join(an(base.__name__) for base in bases)
    if not isinstance(found, type) or not issubclass(found, bases):
        raise ValueError(  # noqa: TRY004  (the text is wrong, and a text may be any)
            f"{kind} {where!r}: {path_text} has no class {name} that is {wanted}; "
            f"write `class {name}(outvote.{bases[-1].__name__})` or fix the name."
        )
    found.loaded_from = where  # type: ignore[attr-defined]
    if not getattr(found, "name", ""):
        found.name = name  # type: ignore[attr-defined]
    return found


def load_object(where: str, kind: str) -> Any:
    """Load anything from "path.py:name"."""
    path_text, _, name = where.rpartition(":")
    found = _load(where, kind)
    if found is None:
        raise ValueError(f"{kind} {where!r}: {path_text} has no {name}; fix the name.")
    return found


def find_file(path_text: str) -> Path:
    """Return a user's file: below the project's folder, or else below the working directory.

    The project's folder is that of the file of settings, see `set_project`.
    """
    project = os.environ.get(PROJECT)
    if project and not Path(path_text).is_absolute() and (Path(project) / path_text).is_file():
        return Path(project) / path_text
    return Path(path_text)


def set_project(folder: Path) -> None:
    """Look for a user's files below a folder first; processes that are started do so too."""
    os.environ[PROJECT] = str(folder.resolve())


def _load(where: str, kind: str) -> Any:
    path_text, _, name = where.rpartition(":")
    check_allowed(path_text)
    path = find_file(path_text)
    if not path.is_file():
        folder = "" if path.is_absolute() else f" in the folder {Path.cwd()}"
        raise ValueError(f"{kind} {where!r}: there is no file {path_text}{folder}; check the path.")
    return getattr(_load_module(path.resolve(), path.stat().st_mtime_ns), name, None)


def user_line(error: BaseException) -> str:
    """Return the line of a user's file that raised an error: "mine.py, line 7", or ""."""
    each: BaseException | None = error
    while each is not None:
        for frame, line in reversed(list(walk_tb(each.__traceback__))):
            if str(frame.f_globals.get("__name__")).startswith(MODULE_PREFIX):
                return f"{Path(frame.f_code.co_filename).name}, line {line}"
        each = each.__cause__ or each.__context__
    return ""


@lru_cache(maxsize=64)
def _load_module(path: Path, changed: int) -> ModuleType:
    del changed
    digest = hashlib.blake2b(str(path).encode(), digest_size=6).hexdigest()
    name = f"{MODULE_PREFIX}{path.stem}_{digest}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} cannot be loaded as a Python file.")
    if isinstance(spec.loader, SourceFileLoader):
        spec.loader = _FromSource(name, str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        sys.modules.pop(name, None)
        raise ValueError(f"{path} failed to load: {type(error).__name__}: {error}") from error
    return module


class _FromSource(SourceFileLoader):
    """Always compiles: bytecode passes as new after a change of the same size within a second."""

    def get_code(self, fullname: str) -> CodeType:
        del fullname
        return self.source_to_code(self.get_data(self.path), self.path)
