"""One public script: where it is, how it is started, what it is known to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.scripts.failures import NotFetched

Maker = Callable[[Path], None]  # makes a script's data, given the folder that it starts in


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What the script does, known from its arguments and its data; None where only the run can tell."""

    steps: int | str | None  # training batches; a pattern where the script prints how many it made
    epochs: int | None = 1  # passes over the training data
    validation: int | None = 0  # batches of evaluation
    optimizers: int = 1  # that update side by side and count as one


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A script of a public repository, started as its users start it."""

    name: str
    repository: str  # owner/name on GitHub
    folder: str  # what the script needs of the repository: copied for every run
    script: str  # relative to the folder, which is also where it starts
    arguments: str = ""  # as in a shell
    data: Maker | None = None
    work: Work
    results: str  # a pattern for what must be printed alike; every group counts
    import_from: str | None = None  # a folder, relative to `folder`, that holds the script's own package
    variables: dict[str, str] = field(default_factory=dict)
    note: str = ""

    def source(self, repositories: Path) -> Path:
        """The folder of the script in a checkout."""
        checkout = repositories / self.repository
        if not checkout.is_dir():
            raise NotFetched(
                f"{self.name}: {checkout} is missing; "
                f"git clone https://github.com/{self.repository} {checkout}"
            )
        source = checkout / self.folder
        if not (source / self.script).is_file():
            raise NotFetched(f"{self.name}: {checkout} has no {Path(self.folder) / self.script}")
        return source
