"""A file and settings become one configuration that knows where each value came from."""

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from laptime.errors import ConfigError
from laptime.training.config import Config
from laptime.training.config.reading import read_config
from laptime.training.data.kinds import FolderData, SyntheticData, ZenerData

TOML = """
network = "zener4"
optimizer = "adam"
[train]
batch = 64
epochs = 3
[record]
kernels = [4, 5]
"""
YAML = """
network: zener4
optimizer: adam
train:
  batch: 64
  epochs: 3
record:
  kernels: [4, 5]
"""
NESTED = """<laptime>
  <network>zener4</network>
  <optimizer><name>adam</name></optimizer>
  <train><batch>64</batch><epochs>3</epochs></train>
  <record><kernels><step>4</step><step>5</step></kernels></record>
</laptime>"""
ATTRIBUTES = """<laptime network="zener4">
  <optimizer name="adam"/>
  <train batch="64" epochs="3"/>
  <record kernels="4 5"/>
</laptime>"""


def file(folder, text, name="a.toml"):
    path = folder / name
    path.write_text(text, "utf-8")
    return path


def config(folder, text, *settings, name="a.toml"):
    return read_config(file(folder, text, name), settings).config


@pytest.mark.parametrize(
    ("name", "text"), [("a.yaml", YAML), ("a.yml", YAML), ("a.xml", NESTED), ("a.xml", ATTRIBUTES)]
)
def test_every_format_says_the_same(name, text, tmp_path):
    assert config(tmp_path, text, name=name) == config(tmp_path, TOML)


def test_a_word_stands_for_a_section(tmp_path):
    text = 'network = "fcn5"\ndata = "synthetic"\noptimizer = "adam"\nschedule = "cosine"\nloss = "squared"'
    found = config(tmp_path, text)
    assert (found.network.name, found.data.kind) == ("fcn5", "synthetic")
    assert (found.optimizer.name, found.schedule.name, found.loss.name) == ("adam", "cosine", "squared")


def test_data_left_out_is_the_networks_own(tmp_path):
    found = read_config(file(tmp_path, 'network = "zener4"\n[data]\nsamples = 80'))
    assert found.config.data == ZenerData(samples=80)
    assert found.sources["data.kind"] == "default of network zener4"


def test_a_network_of_ones_own_is_not_imported_to_read_its_configuration(tmp_path):
    found = config(tmp_path, 'network = "no.such.module:build"\ndata = "digits"')
    assert found.network.name == "no.such.module:build"


def test_a_run_is_called_after_its_file(tmp_path):
    assert config(tmp_path, TOML, name="cards.toml").name == "cards"
    assert config(tmp_path, 'name = "mine"\n' + TOML).name == "mine"


def test_settings_go_over_the_file_and_the_last_one_counts(tmp_path):
    path = file(tmp_path, TOML)
    found = read_config(path, ["train.batch=8", "train.batch=16"])
    assert found.config.train.batch == 16
    assert found.sources["train.batch"] == "--set"
    assert found.sources["train.epochs"] == str(path)
    assert found.sources["train.clip"] == "default"


def test_a_setting_takes_the_type_of_its_field(tmp_path):
    found = config(
        tmp_path,
        'network = "vgg11"',
        "network.options.batch_norm=true",
        "network.options.depth=13",
        "lr=1e-3",
        "steps=1e3",
        "compile=Yes",
        "clip=none",
        "data.shape=3x64x64",
        "kernels=1,2",
        "layers=2",
    )
    assert found.network.options == {"batch_norm": True, "depth": 13}
    assert (found.optimizer.lr, found.train.steps, found.train.compile) == (0.001, 1000, True)
    assert found.train.clip is None
    assert isinstance(found.data, SyntheticData)
    assert found.data.shape == (3, 64, 64)
    assert (found.record.kernels, found.record.layers) == ((1, 2), "2")


def test_a_bare_key_stands_for_the_only_field_of_its_name(tmp_path):
    found = config(tmp_path, TOML, "batch=8", "threads=2", "lr=0.1", "samples=99", "data=synthetic")
    assert (found.train.batch, found.train.threads, found.optimizer.lr) == (8, 2, 0.1)
    assert found.data == SyntheticData(samples=99)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("seed=3", "--set seed could be data.seed or train.seed; write one of them in full"),
        ("every=3", "--set every could be schedule.every, validation.every or checkpoint.every; write one"),
        ("name=x", "--set name could be .name, network.name, optimizer.name, schedule.name or loss.name"),
        ("bacth=3", "--set bacth: there is no such key; did you mean train.batch?"),
        ("zzzzz=3", "--set zzzzz: there is no such key; laptime train CONFIG --explain lists all keys"),
        ("batch", "--set batch is not key=value, such as train.batch=64"),
        ("=3", "--set =3 is not key=value"),
        ("train.bacth=3", "--set: train.bacth is unknown; did you mean train.batch?"),
        ("batch=many", "--set: train.batch is 'many', which is no whole number; write one such as 32"),
        ("train=3", "--set: train is '3', where a table is wanted; write [train] and keys below it"),
    ],
)
def test_a_wrong_setting_says_what_to_change(setting, words, tmp_path):
    with pytest.raises(ConfigError) as error:
        config(tmp_path, TOML, setting)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_the_runs_own_name_is_set_with_a_dot(tmp_path):
    assert config(tmp_path, TOML, ".name=mine").name == "mine"


def test_a_choice_by_setting_lets_go_of_what_the_file_says_for_another(tmp_path):
    text = 'network = "zener4"\n[data]\nnoise = 0.5\nsamples = 70\n[optimizer]\nnesterov = true'
    text = f"{text}\n[network.options]\nhidden = 60".replace("network =", "network.name =")
    found = config(tmp_path, text, "data=synthetic", "optimizer=adam", "network=alexnet")
    assert found.network.options == {}
    assert found.data == SyntheticData(samples=70)
    assert not found.optimizer.nesterov
    with pytest.raises(ConfigError, match=r"--set: optimizer.betas is for adam and adamw"):
        config(tmp_path, text, "optimizer.betas=0.5,0.9")


def test_a_point_of_a_sweep_goes_over_the_settings(tmp_path):
    path = file(tmp_path, TOML)
    resolved = read_config(path, ["threads=1", "batch=8"], ["batch=128", "train.epochs=5"])
    train = resolved.config.train
    assert (train.batch, train.epochs, train.threads) == (128, 5, 1)
    assert (resolved.sources["train.batch"], resolved.sources["train.threads"]) == ("--sweep", "--set")
    with pytest.raises(ConfigError, match=r"--sweep: train.batch is 0, which is out of range"):
        read_config(path, ["threads=1"], ["batch=0"])


def test_paths_in_a_file_start_at_the_file_and_those_of_settings_where_one_is(tmp_path, monkeypatch):
    (tmp_path / "recipes").mkdir()
    (tmp_path / "images").mkdir()
    (tmp_path / "here" / "images").mkdir(parents=True)
    path = file(tmp_path, "network = 'alexnet'\ndata = {kind='folder', path='../images'}", "recipes/a.toml")
    monkeypatch.chdir(tmp_path / "here")
    found = read_config(Path("../recipes/a.toml")).config.data
    assert isinstance(found, FolderData)
    assert found.path == tmp_path / "images"
    set_here = read_config(path, ["data.path=images"]).config.data
    assert isinstance(set_here, FolderData)
    assert set_here.path == tmp_path / "here" / "images"


def test_images_that_are_yet_to_be_brought_need_not_be_there(tmp_path):
    text = "network = 'alexnet'\ndata = {kind='folder', path='later', remote='s3://bucket/images'}"
    assert config(tmp_path, text).data.kind == "folder"


def test_several_problems_are_told_at_once_below_their_number(tmp_path):
    text = (
        'network = "zener4"\n[train]\nbatch = 0\nbacth = 1\n[schedule]\nfinal = 0.5\n[data]\nnoise = "much"'
    )
    path = file(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        read_config(path, ["epochs=never"])
    first, *lines = str(error.value).splitlines()
    assert first == f"{path}: 5 things to change"
    assert {line.split()[0] for line in lines} == {
        "train.bacth",
        "train.batch",
        "--set:",
        "data.noise",
        "schedule.final",
    }


def test_a_configuration_is_frozen(tmp_path):
    found = config(tmp_path, TOML)
    with pytest.raises(ValidationError):
        found.train.batch = 3  # type: ignore[misc]
    assert Config.model_validate_json(found.model_dump_json()) == found


def test_reading_imports_no_torch_before_a_network_is_looked_up():
    code = "import sys, laptime.training.config.reading; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_where_there_is_a_comma_nothing_else_parts_a_list(tmp_path):
    (tmp_path / "a.toml").write_text("network = 'alexnet'\n[data]\nkind = 'folder'\npath = '.'")
    for text in ("cats and dogs, plain", "cats and dogs,plain,", '["cats and dogs", "plain"]'):
        classes = read_config(tmp_path / "a.toml", [f"data.classes={text}"]).config.data.classes
        assert classes == ("cats and dogs", "plain")
    assert read_config(tmp_path / "a.toml", ["data.classes=cats dogs"]).config.data.classes == (
        "cats",
        "dogs",
    )


def test_a_list_in_xml_is_parted_by_its_commas(tmp_path):
    text = f"<laptime><architecture>alexnet</architecture><data_location>{tmp_path}</data_location>"
    (tmp_path / "a.xml").write_text(f"{text}<classes>cats and dogs, plain</classes></laptime>")
    assert read_config(tmp_path / "a.xml").config.data.classes == ("cats and dogs", "plain")
