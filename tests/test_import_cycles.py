"""No module of laptime imports itself through others, imports inside of functions included."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
MEASURING = tuple(
    f"laptime.{folder}." for folder in ("model", "runs", "hardware", "ops", "capture", "recorder", "bridges")
)


def modules():
    """Every module's path, by its name."""
    named = {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in SOURCE.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in named.items()}


def statements(tree, *, types):
    """Every node; without `types`, none that only type checkers see."""
    for node in ast.iter_child_nodes(tree):
        hidden = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if types or not hidden:
            yield node
            yield from statements(node, types=types)


def imports(path, known, *, types):
    """The modules of laptime that a file names."""
    for node in statements(ast.parse(path.read_text()), types=types):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else node.module


@pytest.mark.parametrize("types", [False, True])
def test_no_module_imports_itself_through_others(types):
    known = modules()
    if types:  # also for types alone, where steps are measured and kept
        known = {name: path for name, path in known.items() if name.startswith(MEASURING)}
    graph = {name: set(imports(path, known, types=types)) for name, path in known.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError with the cycle
