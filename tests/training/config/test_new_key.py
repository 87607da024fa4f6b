"""A key is one field of the schema: files, settings, messages, `--explain` and the reference follow."""

import pytest
from tools.reference.configuration import reference

from laptime.errors import ConfigError
from laptime.training.config import Config, fields, reading
from laptime.training.config.reading import explain
from laptime.training.config.schema import TrainConfig
from laptime.training.config_section import Count


class LongerTrainConfig(TrainConfig):
    """The loop."""

    patience: Count = 3
    """Epochs without a better validation before the training stops; 0: never."""


class LongerConfig(Config):
    """A training, with one key more."""

    train: LongerTrainConfig = LongerTrainConfig()


@pytest.fixture(autouse=True)
def one_key_more(monkeypatch):
    for module in (fields, reading):
        monkeypatch.setattr(module, "Config", LongerConfig)
    fields.keys.cache_clear()
    yield
    fields.keys.cache_clear()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.toml", "network = 'zener4'\n[train]\npatience = 7"),
        ("a.yaml", "network: zener4\ntrain: {patience: 7}"),
        ("a.xml", "<laptime><network>zener4</network><train patience='7'/></laptime>"),
    ],
)
def test_every_format_takes_it(name, text, tmp_path):
    (tmp_path / name).write_text(text)
    resolved = reading.read_config(tmp_path / name)
    assert resolved.config.train.patience == 7
    assert resolved.sources["train.patience"] == str(tmp_path / name)


def test_settings_take_it_by_its_bare_name_and_explain_tells_it(tmp_path):
    (tmp_path / "a.toml").write_text("network = 'zener4'")
    rows = {row[0]: row[1:] for row in explain(reading.read_config(tmp_path / "a.toml", ["patience=5"]))}
    assert rows["train.patience"] == (
        "5",
        "--set",
        "Epochs without a better validation before the training stops; 0: never.",
    )


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("patience=-1", "train.patience is -1, which is out of range; write a whole number of at least 0"),
        ("patience=some", "train.patience is 'some', which is no whole number; write one such as 3"),
        ("train.patiense=1", "train.patiense is unknown; did you mean train.patience?"),
    ],
)
def test_a_wrong_value_is_answered_as_any_other(setting, words, tmp_path):
    (tmp_path / "a.toml").write_text("network = 'zener4'")
    with pytest.raises(ConfigError) as error:
        reading.read_config(tmp_path / "a.toml", [setting])
    assert words in str(error.value)


def test_the_reference_lists_it():
    assert "| `train.patience` | a whole number of at least 0 | `3` | Epochs without a better" in reference()
