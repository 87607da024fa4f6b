"""`python -m tools.reference` brings docs/reference.md and the keys of docs/configuration.md up to date."""

from tools.reference import PAGE, configuration, reference

PAGE.write_text(reference(), "utf-8")
configuration.PAGE.write_text(configuration.put_into(configuration.PAGE.read_text("utf-8")), "utf-8")
