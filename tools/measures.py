"""Measures of the source tree that a reader feels: `python -m tools.measures [REVISION ...]`.

Prints one column for each revision of git and one for the working tree.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tarfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LONG_FUNCTION = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One module of the package."""

    name: str
    text: str
    tree: ast.Module


def working_tree() -> dict[str, str]:
    """Python files of the package by their path under src."""
    folder = ROOT / "src"
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.py")}


def revision(name: str) -> dict[str, str]:
    """The same of a commit."""
    archive = subprocess.run(
        ["git", "archive", name, "src"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    texts = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar.getmembers():
            file = tar.extractfile(member) if member.name.endswith(".py") else None
            if file is not None:
                texts[member.name.removeprefix("src/")] = file.read().decode()
    return texts


def sources(texts: Mapping[str, str]) -> list[Source]:
    """The modules, parsed."""
    return [
        Source(
            name=path.removesuffix(".py").removesuffix("/__init__").replace("/", "."),
            text=text,
            tree=ast.parse(text),
        )
        for path, text in sorted(texts.items())
    ]


def measures(modules: list[Source]) -> dict[str, str]:
    """Every measure by its name, as text."""
    functions = list(_functions(modules))
    lengths = sorted((length for _, length in functions), reverse=True)
    classes = Counter(
        node.name for module in modules for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)
    )
    importers = _importers(modules)
    leaves = [name for name, users in importers.items() if len(users) == 1]
    names = Counter(
        name
        for module in modules
        for function in _function_nodes(module.tree)
        for name in _variables(function)
    )
    longest = max(functions, key=lambda pair: pair[1])
    return {
        "files": f"{len(modules):,}",
        "lines": f"{sum(module.text.count(chr(10)) for module in modules):,}",
        "dict[str, Any]": f"{sum(module.text.count('dict[str, Any]') for module in modules):,}",
        "look-ups by a string": f"{sum(map(_string_lookups, modules)):,}",
        "class names defined twice": str(sum(count > 1 for count in classes.values())),
        "modules with one importer": str(len(leaves)),
        "private names imported by other files": str(sum(map(_private_imports, modules))),
        "functions with a variable `found`": str(names["found"]),
        "functions with a variable `one`": str(names["one"]),
        f"functions over {LONG_FUNCTION} lines": str(sum(length > LONG_FUNCTION for length in lengths)),
        "longest function": f"{longest[1]} lines ({longest[0]})",
        "median function": f"{lengths[len(lengths) // 2]} lines",
        "modules in import cycles": str(len(_in_cycles(modules))),
    }


def _function_nodes(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _functions(modules: list[Source]) -> Iterator[tuple[str, int]]:
    for module in modules:
        for node in _function_nodes(module.tree):
            yield f"{module.name}.{node.name}", (node.end_lineno or node.lineno) - node.lineno + 1


def _variables(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    return {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def _string_lookups(module: Source) -> int:
    return sum(
        isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Constant)
        and isinstance(node.slice.value, str)
        for node in ast.walk(module.tree)
    )


def _imports(module: Source, names: set[str]) -> set[str]:
    """Modules of the package that this one imports, also inside functions."""
    imported = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                imported.add(full if full in names else node.module)
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
    return (imported & names) - {module.name}


def _importers(modules: list[Source]) -> dict[str, set[str]]:
    names = {module.name for module in modules}
    importers: dict[str, set[str]] = defaultdict(set)
    for module in modules:
        for name in _imports(module, names):
            importers[name].add(module.name)
    return importers


def _private_imports(module: Source) -> int:
    return sum(
        alias.name.startswith("_") and not alias.name.startswith("__")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("laptime")
        for alias in node.names
    )


def _in_cycles(modules: list[Source]) -> set[str]:
    """Modules from which a chain of imports leads back to themselves, those at the top of files alone."""
    names = {module.name for module in modules}
    edges = {
        module.name: _imports(
            Source(name=module.name, text="", tree=ast.Module(body=_top(module.tree), type_ignores=[])), names
        )
        for module in modules
    }

    def reaches_itself(start: str) -> bool:
        seen: set[str] = set()
        todo = list(edges[start])
        while todo:
            name = todo.pop()
            if name == start:
                return True
            if name not in seen:
                seen.add(name)
                todo += edges[name]
        return False

    return {name for name in names if reaches_itself(name)}


def _top(tree: ast.Module) -> list[ast.stmt]:
    return [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]


def main() -> None:
    """Print the table."""
    columns = {name: measures(sources(revision(name))) for name in sys.argv[1:]}
    columns["working tree"] = measures(sources(working_tree()))
    rows = [
        ("", *columns),
        *((name, *(column[name] for column in columns.values())) for name in columns["working tree"]),
    ]
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    main()
