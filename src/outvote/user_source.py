"""The source of a user's functions and classes, and which names it changes."""

import ast
import builtins
import functools
import inspect
import sys
import sysconfig
import textwrap
from collections import Counter
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

INSTALLED = ("site-packages", "dist-packages")
DEFINED_IN_PYTHON = 1 << 9
"""The flag of classes that are made while a program runs."""
CHANGING = frozenset(
    [
        *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem"),
        *("popleft", "put", "remove", "reverse", "setdefault", "sort", "update", "write"),
        *("load_state_dict", "step"),
    ]
)
"""Methods that change their object."""


def is_installed(thing: Any) -> bool:
    """Return whether code belongs to Python or an installed package: its name stands for it."""
    is_module = isinstance(thing, ModuleType)
    module = thing.__name__ if is_module else getattr(thing, "__module__", None) or ""
    root = module.partition(".")[0]
    if root == "builtins":  # Also the module of what `exec` defines.
        is_static = isinstance(thing, type) and not thing.__flags__ & DEFINED_IN_PYTHON
        return is_module or is_static or getattr(builtins, thing.__name__, None) is thing
    if root in ("outvote", "torch", "numpy", "__main__"):
        return root != "__main__"  # What is run is the user's, wherever its file is.
    path = getattr(sys.modules.get(module), "__file__", None)
    if path is None:
        return root in sys.stdlib_module_names
    is_standard = Path(path).is_relative_to(sysconfig.get_path("stdlib"))
    return is_standard or any(part in path for part in INSTALLED)


def source_of(thing: Any) -> str | None:
    """Return the text of a function, its code, or a class."""
    try:
        return textwrap.dedent(inspect.getsource(thing))
    except (OSError, TypeError):
        return None


def lambda_source(function: FunctionType) -> str | None:
    """Return the text of a lambda alone: its line may hold several, or the rest of a call."""
    code = function.__code__
    spots = [
        ((line, column), (end_line, end_column))
        for line, end_line, column, end_column in code.co_positions()
        if None not in (line, end_line, column, end_column)
        and (line, column) != (end_line, end_column)
    ]
    nodes = _nodes(function, ast.Lambda)
    if not spots:
        # Python 3.12 keeps no place of a body that is a constant; equal ones are interchangeable.
        nodes = [node for node in nodes if node.lineno == code.co_firstlineno]
        found = [node for node in nodes if _is_compiled_to(node, code)][:1]
    else:
        found = [
            node
            for node in nodes
            if all(_start(node.body) <= start and end <= _end(node.body) for start, end in spots)
        ]
    # Of nested ones, the innermost starts last.
    return ast.unparse(max(found, key=_start)) if found else None


def _is_compiled_to(node: ast.Lambda, code: CodeType) -> bool:
    """Return whether a lambda has this code, apart from where it stands."""
    whole = compile(ast.Expression(body=node), "<lambda>", "eval")
    (made,) = (part for part in whole.co_consts if isinstance(part, CodeType))
    return [*map(repr, made.co_consts), made.co_code, made.co_varnames] == [
        *map(repr, code.co_consts),
        code.co_code,
        code.co_varnames,
    ]


def functions_of(part: Any) -> list[FunctionType]:
    """Return the functions of an attribute of a class."""
    if isinstance(part, property):
        several = [part.fget, part.fset, part.fdel]
    elif isinstance(part, functools.cached_property | functools.singledispatchmethod):
        several = [part.func]
    elif isinstance(part, staticmethod | classmethod):
        several = [part.__func__]
    else:
        several = [part]
    return [each for each in several if isinstance(each, FunctionType)]


def class_source(kind: type) -> str | None:
    """Return the text of a class; of several with one name, and in notebooks, by its methods."""
    for part in vars(kind).values():
        for method in functions_of(part):
            line = method.__code__.co_firstlineno
            found = [
                node
                for node in _nodes(method, ast.ClassDef)
                if node.name == kind.__name__ and node.lineno <= line <= (node.end_lineno or 0)
            ]
            if found:
                node = max(found, key=_start)
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                lines = inspect.findsource(method)[0][first - 1 : node.end_lineno]
                return textwrap.dedent("".join(lines))
    source = source_of(kind)
    return source if _defines(source, kind.__name__) else None


def _defines(source: str | None, name: str) -> bool:
    """Return whether a text is a class of some name.

    From 3.13 on, Python takes the lines of a class by number from the file of its module; of one
    that `exec` made, these are lines of something else.
    """
    try:
        body = ast.parse(source or "").body
    except SyntaxError:
        return False
    return bool(body) and isinstance(body[0], ast.ClassDef) and body[0].name == name


def _nodes(function: FunctionType, kind: type[Any]) -> list[Any]:
    """Return the nodes of some kind in the file or the cell that a function is defined in."""
    try:
        lines, _ = inspect.findsource(function)
        tree = ast.parse("".join(lines))
    except (OSError, TypeError, SyntaxError):
        return []
    return [node for node in ast.walk(tree) if isinstance(node, kind)]


def _start(node: Any) -> tuple[int, int]:
    return (node.lineno, node.col_offset)


def _end(node: Any) -> tuple[int, int]:
    return (node.end_lineno, node.end_col_offset)


def changed_names(source: str | None) -> dict[str, bool]:
    r"""Return the dotted names of what a source changes, and whether it may read them, too.

    >>> changed_names("def f(x):\n    seen.append(x)\n    state.rates[0] = x")
    {'seen': False, 'state.rates': True}
    """
    try:
        tree = ast.parse(textwrap.dedent(source or ""))
    except SyntaxError:  # A lambda within a larger expression.
        return {}
    nodes = list(ast.walk(tree))
    found = {name for node in nodes for name in _changed_by(node)} - {""}
    num_uses = Counter(node.id for node in nodes if isinstance(node, ast.Name))
    num_calls = Counter(
        name for node in nodes if isinstance(node, ast.Expr) for name in _changed_by(node.value)
    )
    return {name: num_calls[name] < max(num_uses[name], 1) for name in sorted(found)}


def _changed_by(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Global | ast.Nonlocal):
        return node.names
    if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
        return [_dotted(node)]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return [_dotted(node.func.value)] if node.func.attr in CHANGING else []
    return []


def _dotted(node: ast.AST) -> str:
    """Return `a.b` for `a.b` and `a.b[0].c`, `cls.b` for `type(a).b`; else nothing."""
    parts: list[str] = []
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Attribute):
            parts.insert(0, node.attr)
        elif isinstance(node, ast.Subscript):
            parts.clear()
        elif ast.unparse(node).startswith("type("):
            return ".".join(["cls", *parts])
        else:
            return ""
        node = node.value
    return ".".join([node.id, *parts])
