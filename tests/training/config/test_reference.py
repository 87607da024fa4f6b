"""docs/configuration.md: its reference is the schema's, and its examples are valid."""

import re

import pytest
from tools.reference.configuration import PAGE, put_into, reference

from laptime.training.config.fields import names
from laptime.training.config.reading import read_config

EXAMPLES = re.findall(r"```(toml|yaml|xml)\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


def test_the_committed_reference_is_current():
    text = PAGE.read_text("utf-8")
    assert text == put_into(text), "run: make docs"


def test_the_reference_has_every_key_with_its_meaning():
    table = reference()
    assert all(f"| `{key}` |" in table for key in names() if key != "data.kind")
    assert "|  |" not in table


@pytest.mark.parametrize(("suffix", "text"), EXAMPLES)
def test_the_examples_of_the_page_are_valid(suffix, text, tmp_path):
    path = tmp_path / f"example.{suffix}"
    path.write_text(text, "utf-8")
    (tmp_path / "images").mkdir()
    read_config(path)


def test_the_page_has_an_example_of_each_format():
    assert {suffix for suffix, _ in EXAMPLES} == {"toml", "yaml", "xml"}
