"""No module of laptime imports itself through others, imports in functions and for types alone included."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"


def modules():
    """Every module's path, by its name."""
    named = {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in SOURCE.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in named.items()}


def imports(path, known):
    """The modules of laptime that a file names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else node.module


def test_no_module_imports_itself_through_others():
    known = modules()
    graph = {name: set(imports(path, known)) for name, path in known.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError with the cycle
