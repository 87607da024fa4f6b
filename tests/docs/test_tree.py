"""What README, CONTRIBUTING and docs/changing.md say of files, folders and extras is so."""

import re
import tomllib

import pytest

from tests.docs.pages import ROOT

SOURCE = ROOT / "src" / "laptime"
FOLDERS = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
CHANGING = (ROOT / "docs" / "changing.md").read_text("utf-8")


def layers():
    """The folders in the order of the import contract, with the neighbours of each layer together."""
    contract = PROJECT["tool"]["importlinter"]["contracts"][0]
    for layer in contract["layers"]:
        there = [
            name for name in re.findall(r"\w+", layer) if name in FOLDERS or (SOURCE / f"{name}.py").exists()
        ]
        if there and there != ["__main__"]:
            yield there


def test_contributing_has_the_layers_that_the_checker_enforces():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    (chain,) = re.findall(r"^cli → .*$", text, re.M)
    assert [part.split(", ") for part in chain.split(" → ")] == list(layers())


def test_the_tree_of_the_readme_has_every_folder_and_no_other():
    tree = (ROOT / "README.md").read_text("utf-8").partition("src/laptime/\n")[2].partition("```")[0]
    named = re.findall(r"^  (\w+)/ +\S", tree, re.M)
    assert sorted(named) == sorted(FOLDERS)
    for name in re.findall(r"^(\w+)/ ", tree, re.M):
        assert (ROOT / name).is_dir(), name


def test_the_readme_says_which_extras_there_are():
    text = (ROOT / "README.md").read_text("utf-8")
    install = text.partition("In an environment of your own")[2].partition("## ")[0]
    assert "pip install" in install
    for extra in set(PROJECT["project"]["optional-dependencies"]) - {"dev", "bench"}:
        assert f"`{extra}`" in install, extra


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:src|tests)/[\w/.]+)`", CHANGING))))
def test_files_that_changing_names_are_there(path):
    assert (ROOT / path.replace("VERB", "show")).exists()


def test_every_test_that_changing_names_is_there():
    sources = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    for name in re.findall(r"`(test_\w+)`", CHANGING):
        assert f"def {name}(" in sources, name
