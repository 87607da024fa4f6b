"""`python -m tools.reference` brings docs/reference.md up to date."""

from tools.reference import PAGE, reference

PAGE.write_text(reference(), "utf-8")
