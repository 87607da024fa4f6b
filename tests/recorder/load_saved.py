"""Loads what was saved during recordings, in a process that has no laptime, and says how each file did.

    python load_saved.py FOLDER

FOLDER holds the files, and `files.json` that says of each which batch to give it and what the answer is.
Networks of laptime's own zoo come last: their classes may be imported then, and nothing else of it.
"""

import json
import pickle
import sys
import warnings
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

ZOO = (
    "laptime",
    "laptime.training",
    "laptime.errors",
    "laptime.training.objectives",
    "laptime.training.networks",
)


class NoLaptime(MetaPathFinder):
    """Refuses laptime, but for what it is told to allow."""

    allowed: tuple[str, ...] = ()

    def find_spec(self, name: str, *_: Any) -> None:
        zoo = name in self.allowed or name.startswith("laptime.training.networks.")
        if name.partition(".")[0] == "laptime" and not (self.allowed and zoo):
            raise ModuleNotFoundError(f"there is no {name} here")


def main(folder: Path) -> dict[str, str]:
    """A line for each file: "" where it was loaded and gave the answer."""
    guard = NoLaptime()
    sys.meta_path.insert(0, guard)
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    told = {}
    files = json.loads((folder / "files.json").read_text())
    for zoo in (False, True):
        guard.allowed = ZOO if zoo else ()
        for file in files:
            if file["zoo"] is zoo:
                told[file["name"]] = _told(folder, file)
                if not zoo and "laptime" in sys.modules:
                    return told | {file["name"]: "it imports laptime"}
    return told


def _told(folder: Path, file: dict[str, Any]) -> str:
    import torch

    try:
        loaded = _load(folder / file["name"], file["way"])
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if file["answer"] is None:
        return ""
    batch, expected = torch.load(folder / file["answer"])
    if file["bare"] is not None:
        expected = _answer(_load(folder / file["bare"], file["way"]), batch)
    given = _answer(loaded, batch)
    if isinstance(given, str) or isinstance(expected, str):
        return "" if isinstance(given, str) and isinstance(expected, str) else f"{given} against {expected}"
    same = len(given) == len(expected) and all(map(torch.equal, given, expected))
    return "" if same else "it computes something else"


def _answer(network: Any, batch: Any) -> Any:
    """What a network gives; what it raises, as text."""
    import torch

    from tests.recorder.saved_networks import numbers

    try:
        if not isinstance(network, torch.fx.GraphModule):  # an exported program has no modes
            network.eval()
        with torch.no_grad():
            return numbers(network(batch))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _load(file: Path, way: str) -> Any:
    import torch

    if way.endswith("weights.pt"):
        return torch.load(file, weights_only=True)
    if way.endswith(".pt"):
        return torch.load(file, weights_only=False)
    if way.endswith(".pickle"):
        return pickle.loads(file.read_bytes())
    if way.endswith(".ts"):
        return torch.jit.load(file)
    if way.endswith(".pt2"):
        return torch.export.load(file).module()
    if way == "packaged":
        from torch.package import PackageImporter

        return PackageImporter(str(file)).load_pickle("saved", "network.pkl")
    from safetensors.torch import load_file

    return load_file(file)


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
