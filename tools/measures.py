"""Measures of the source tree that a reader feels: `python -m tools.measures [REVISION ...]`.

Prints one column for each revision of git and one for the working tree.
"""

from __future__ import annotations

import ast
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LONG_FUNCTION = 40

# Records a small run with the laptime on the path, makes its page, and counts the reads of part files.
_COUNT_READS = """
import collections, os, sys, warnings
import pyarrow, pyarrow.parquet
warnings.simplefilter("ignore")
import torch, laptime

folder, reads, path = sys.argv[1], collections.Counter(), ""
network = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
with laptime.record(network, optimizer, out=f"{folder}/run", every_step=True) as recording:
    for batch in recording.steps([torch.ones(4, 8)] * 30):
        network(batch).sum().backward()
        optimizer.step()

class File(pyarrow.OSFile):
    def __init__(self, name, *arguments, **options):
        global path
        path = os.fsdecode(name)

class ParquetFile(pyarrow.parquet.ParquetFile):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.table = os.path.basename(os.path.dirname(path))

def counted(method):
    def read(self, *arguments, **options):
        reads[self.table] += 1
        return method(self, *arguments, **options)
    return read

for name in ("read", "read_row_group", "read_row_groups", "iter_batches"):
    setattr(ParquetFile, name, counted(getattr(ParquetFile, name)))
pyarrow.OSFile, pyarrow.parquet.ParquetFile = File, ParquetFile
laptime.load(f"{folder}/run").report(f"{folder}/page.html")
print(reads["steps"], reads["layers"])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One module of the package."""

    name: str
    text: str
    tree: ast.Module


@contextmanager
def package_folder(revision: str | None) -> Iterator[Path]:
    """The folder `src` as it is now, or as a commit has it."""
    if revision is None:
        yield ROOT / "src"
        return
    command = ["git", "archive", revision, "src"]
    archive = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
        yield Path(folder) / "src"


def sources(folder: Path) -> list[Source]:
    """The modules, parsed."""
    paths = sorted(folder.rglob("*.py"))
    names = [path.relative_to(folder).as_posix() for path in paths]
    return [
        Source(
            name=name.removesuffix(".py").removesuffix("/__init__").replace("/", "."),
            text=text,
            tree=ast.parse(text),
        )
        for name, text in zip(names, (path.read_text() for path in paths), strict=True)
    ]


def reads_for_a_page(folder: Path) -> str:
    """How often the rows of `steps` and of `layers` are read to make the page of a small run."""
    with tempfile.TemporaryDirectory() as out:
        done = subprocess.run(
            [sys.executable, "-c", _COUNT_READS, out],
            env={**os.environ, "PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
            check=False,
        )
    return ", ".join(done.stdout.split()[-2:]) if done.returncode == 0 else "not counted"


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
        "of these code": f"{sum(map(_code_lines, modules)):,}",
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


def _code_lines(module: Source) -> int:
    """Lines that are neither blank nor a comment, a docstring or an import at the top."""
    lines = module.text.splitlines()
    other = {number for number, line in enumerate(lines, 1) if not line.strip() or line.strip()[0] == "#"}
    for node in ast.walk(module.tree):
        body = node.body if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) else []
        for inner in body:
            text = isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Constant)
            if text or (node is module.tree and isinstance(inner, ast.Import | ast.ImportFrom)):
                other |= set(range(inner.lineno, (inner.end_lineno or inner.lineno) + 1))
    return len(lines) - len(other)


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
    columns = {}
    for revision in (*sys.argv[1:], None):
        with package_folder(revision) as folder:
            columns[revision or "working tree"] = {
                **measures(sources(folder)),
                "reads of steps, layers for a page": reads_for_a_page(folder),
            }
    rows = [
        ("", *columns),
        *((name, *(column[name] for column in columns.values())) for name in columns["working tree"]),
    ]
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    main()
