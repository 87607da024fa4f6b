"""Work through docs/tutorial.md and put this machine's outputs into it: `python -m tools.tutorial`.

What the page leaves out (`…`) stays left out. An output whose words have changed is an error that shows it:
the words around it have to be read again by someone.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tools.session import work_through

PAGE = Path(__file__).parents[1] / "docs" / "tutorial.md"


def renewed(page: Path, folder: Path) -> str:
    """The page with the outputs of its commands, run in `folder`."""
    lines = page.read_text("utf-8").splitlines()
    for done in reversed(list(work_through(page, folder))):
        begin = done.command.line
        lines[begin : begin + len(done.command.output)] = [line.rstrip() for line in done.output]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Renew the tutorial's outputs."""
    with tempfile.TemporaryDirectory() as folder:
        PAGE.write_text(renewed(PAGE, Path(folder)), "utf-8")
    sys.stdout.write(f"{PAGE.name} has this machine's outputs\n")


if __name__ == "__main__":
    main()
