"""The pages that a reader meets."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (
    *(ROOT / one for one in ("README.md", "CONTRIBUTING.md", "recipes/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
)
TUTORIAL = ROOT / "docs" / "tutorial.md"


def name(page: Path) -> str:
    """For the name of a test."""
    return str(page.relative_to(ROOT))
