"""Names, signatures, docstrings and the comments beside fields, read off the source without importing it."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2] / "src"

Function = ast.FunctionDef | ast.AsyncFunctionDef
WIDTH = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A field, a property or a method of a class."""

    name: str
    arguments: str  # of a method, in parentheses
    gives: str  # its type
    meaning: str


@cache
def _lines(module: str) -> tuple[str, ...]:
    path = ROOT / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return tuple(file.read_text("utf-8").splitlines())


@cache
def definition(module: str, name: str) -> Function | ast.ClassDef:
    """The definition of a function or class of a module."""
    for node in ast.parse("\n".join(_lines(module))).body:
        if isinstance(node, Function | ast.ClassDef) and node.name == name:
            return node
    raise LookupError(f"{module} defines no {name}; mend tools/reference/public.py")


def docstring(node: Function | ast.ClassDef) -> str:
    """Without its indentation."""
    return inspect.cleandoc(ast.get_docstring(node) or "")


def signature(node: Function, name: str) -> str:
    """A call as it may be written; an argument on each line where they do not fit on one."""
    arguments = _without_self(node.args)
    gives = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"{name}({ast.unparse(arguments)}){gives}"
    if len(line) <= WIDTH:
        return line
    each = "".join(f"    {one},\n" for one in _each(arguments))
    return f"{name}(\n{each}){gives}"


def members(module: str, name: str) -> Iterator[Member]:
    """Public fields, properties and methods, in the order of the source."""
    node = definition(module, name)
    assert isinstance(node, ast.ClassDef)
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            if not _is_class_variable(one):
                gives = ast.unparse(one.annotation)
                yield Member(name=one.target.id, arguments="", gives=gives, meaning=_beside(module, one))
        elif isinstance(one, Function) and not one.name.startswith("_"):
            yield _member(one)


def attributes(module: str, name: str) -> Iterator[Member]:
    """What `__init__` sets, and a reader may use; the phrases have their meaning."""
    node = definition(module, name)
    assert isinstance(node, ast.ClassDef)
    made = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
    for one in (line for function in made for line in function.body):
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Attribute):
            gives = ast.unparse(one.annotation)
            yield Member(name=one.target.attr, arguments="", gives=gives, meaning="")


def _member(node: Function) -> Member:
    marks = {ast.unparse(mark) for mark in node.decorator_list}
    is_property = bool(marks & {"property", "cached_property"})
    gives = ast.unparse(node.returns) if node.returns else ""
    return Member(
        name=node.name,
        arguments="" if is_property else f"({ast.unparse(_without_self(node.args))})",
        gives="context manager" if "contextmanager" in marks else gives,
        meaning=docstring(node),
    )


def _is_class_variable(node: ast.AnnAssign) -> bool:
    return "ClassVar" in ast.unparse(node.annotation)


def _beside(module: str, node: ast.AnnAssign) -> str:
    """The comment at the end of the field's line."""
    line = _lines(module)[(node.end_lineno or node.lineno) - 1]
    return line[node.end_col_offset or 0 :].partition("#")[2].strip()


def _without_self(arguments: ast.arguments) -> ast.arguments:
    taken = ast.parse(f"def f({ast.unparse(arguments)}): pass").body[0]
    assert isinstance(taken, ast.FunctionDef)
    if taken.args.args and taken.args.args[0].arg in ("self", "cls"):
        del taken.args.args[0]
    return taken.args


def _each(arguments: ast.arguments) -> Iterator[str]:
    """The arguments one by one, with the star between them."""
    defaults = [None] * (len(arguments.args) - len(arguments.defaults)) + list(arguments.defaults)
    for one, default in zip(arguments.args, defaults, strict=True):
        yield _one(one, default)
    if arguments.kwonlyargs:
        yield "*" + (ast.unparse(arguments.vararg) if arguments.vararg else "")
    for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _one(one, default)
    if arguments.kwarg:
        yield f"**{ast.unparse(arguments.kwarg)}"


def _one(argument: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(argument) + (f" = {ast.unparse(default)}" if default is not None else "")
