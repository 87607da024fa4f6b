"""The recipes: each can be read, says what it repeats, and is in the table."""

import re
from pathlib import Path

import pytest

from laptime.training.config.reading import read_config

RECIPES = Path(__file__).parents[3] / "recipes"
FILES = sorted(path for path in RECIPES.iterdir() if path.suffix in (".toml", ".yaml", ".xml"))


def read(path, folder):
    images = "folder" in path.read_text("utf-8") or path.suffix == ".xml"
    return read_config(path, [f"data.path={folder}"] if images else [])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_recipe_is_valid_and_says_which_experiment_it_repeats(path, tmp_path):
    found = read(path, tmp_path)
    assert found.config.name == path.stem
    assert re.search(r"The (thesis|Zener study|guide)", path.read_text("utf-8"))
    assert found.sources["train.batch"] == str(path)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_recipes_name_tells_what_is_in_it(path, tmp_path):
    config = read(path, tmp_path).config
    network, _, number = path.stem.removesuffix("-tuned").partition("-")
    if path.suffix == ".xml":
        return
    assert config.network.name == network
    if network.startswith("zener"):
        assert (config.train.epochs, config.data.kind) == (int(number), "zener")
    elif number:
        assert config.train.batch == int(number)


def test_every_experiment_of_the_documents_has_a_recipe():
    names = {path.stem for path in FILES}
    assert {"alexnet-64", "alexnet-128", "vgg11-12", "googlenet", "thesis", "fcn5-64", "fcn8-64"} <= names
    assert {f"zener4-{epochs}" for epochs in (25, 50, 100, 200, 400)} | {"zener7-25", "zener7-50"} <= names
    assert {f"zener4-{epochs}-tuned" for epochs in (100, 200, 400)} <= names
    families = "feedforward autoencoder rbm vae dbn gan rnn lstm deconv recursive"
    assert set(families.split()) <= names


def test_the_table_of_recipes_is_complete():
    listed = set(re.findall(r"\(([\w.-]+\.(?:toml|yaml|xml))\)", (RECIPES / "README.md").read_text("utf-8")))
    assert listed == {path.name for path in FILES}
