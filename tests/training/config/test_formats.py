"""TOML, YAML and XML: what each can and cannot say, and that no bytes whatsoever end in a traceback."""

import json
import string

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from laptime.errors import ConfigError
from laptime.training.config.fields import names
from laptime.training.config.formats import read_tree
from laptime.training.config.reading import Resolved, read_config
from laptime.training.data.kinds import FolderData

SUFFIXES = (".toml", ".yaml", ".xml")


def refused(folder, name, data):
    path = folder / name
    path.write_bytes(data)
    with pytest.raises(ConfigError) as error:
        read_config(path)
    assert "\n" not in str(error.value)
    return str(error.value).replace(str(path), "FILE")


WRONG = [
    ("a.ini", b"", "FILE: .ini is no known format; name it .toml, .yaml, .yml or .xml"),
    ("a", b"", "FILE: no suffix is no known format; name it .toml, .yaml, .yml or .xml"),
    ("a.toml", b"name = '\xff'", "FILE: byte 8 is no UTF-8; save the file as UTF-8"),
    ("a.yaml", b"name: \xff", "FILE: byte 6 is no UTF-8; save the file as UTF-8"),
    ("a.yaml", b"- 1\n- 2", "FILE: it holds a list; write keys and values"),
    ("a.yaml", b"train: [", "FILE: YAML cannot be read: "),
    (
        "a.yaml",
        b"train:\n  batch: 1\n  batch: 2",
        "YAML cannot be read: batch is given twice; leave one out (line 3)",
    ),
    ("a.yaml", b"a: &x 1\nb: *x", "the alias *x is not taken; write its value out (line 2)"),
    ("a.yaml", b"train: !!python/object:os.system {}", "could not determine a constructor"),
    (
        "a.yaml",
        b"train: {on: 1}\nnetwork: zener4",
        "train.True has the key true, which is no text; put it in quotes",
    ),
    ("a.toml", b"x = " + b"[" * 5000, "FILE: TOML cannot be read: it is nested more than 64 levels deep"),
    ("a.yaml", b"[" * 5000, "FILE: YAML cannot be read: it is nested more than 64 levels deep"),
    ("a.xml", b"<laptime>", "FILE: XML cannot be read: no element found: line 1, column 9"),
    (
        "a.xml",
        b"<train><batch>3</batch></train>",
        "its outermost element is <train>; put everything inside <laptime>",
    ),
    ("a.xml", b"<laptime><train/><train/></laptime>", "<train> is given twice; leave one out"),
    ("a.xml", b"<laptime><train>5<batch>3</batch></train></laptime>", "<train> holds both text and elements"),
    (
        "a.xml",
        b"<experiment><repetitions>few</repetitions></experiment>",
        "repetitions is 'few'; write a whole number",
    ),
    (
        "a.xml",
        b'<!DOCTYPE a [<!ENTITY b "c">]><laptime>&b;</laptime>',
        "FILE: XML cannot be read: it has a <!DOCTYPE …>, which can define entities",
    ),
]


@pytest.mark.parametrize(("name", "data", "words"), WRONG)
def test_a_file_that_cannot_be_read_says_why(name, data, words, tmp_path):
    assert words in refused(tmp_path, name, data)


def test_a_missing_file_names_its_neighbour(tmp_path):
    (tmp_path / "alexnet-64.toml").touch()
    with pytest.raises(ConfigError, match=r"does not exist; did you mean .*alexnet-64.toml\?"):
        read_config(tmp_path / "alexnet-64")
    with pytest.raises(ConfigError, match=r"does not exist; name a .toml, .yaml, .yml or .xml file"):
        read_config(tmp_path / "no" / "where.toml")
    with pytest.raises(ConfigError, match=r"is a folder; name a .toml"):
        read_config(tmp_path)


def test_a_byte_order_mark_is_no_part_of_a_key(tmp_path):
    path = tmp_path / "a.toml"
    path.write_bytes(b'\xef\xbb\xbfnetwork = "zener4"')
    assert read_config(path).config.network.name == "zener4"


def test_an_empty_yaml_section_is_an_empty_table(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("network: zener4\ntrain:\n")
    assert read_config(path).config.train.batch == 32


def test_yamls_exponents_are_numbers(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("network: zener4\noptimizer: {lr: 1e-3}\n")  # PyYAML reads text here
    assert read_config(path).config.optimizer.lr == 0.001


@pytest.mark.parametrize("case", [str.lower, lambda name: name.replace("_", "-"), lambda name: name.title()])
def test_the_words_of_the_thesis_mean_our_keys(case, tmp_path):
    words = {
        "data_location": "images",
        "remote_data_location": "sftp://server/images",
        "architecture": "VGG-11",
        "batch_size": "12",
        "classes": "n01440764, n02102040",
        "logging": "False",
        "number_of_epochs": "7",
        "repetitions": "3",
    }
    inside = "".join(f"<{case(name)}>{text}</{case(name)}>" for name, text in words.items())
    path = tmp_path / "a.xml"
    path.write_text(f"<experiment>{inside}</experiment>")
    found = read_config(path)
    assert found.repeat == 3
    assert found.config.network.name == "vgg11"
    assert (found.config.train.batch, found.config.train.epochs) == (12, 7)
    assert not found.config.record.profile
    assert found.config.data == FolderData(
        path=tmp_path / "images", remote="sftp://server/images", classes=("n01440764", "n02102040")
    )


def test_both_spellings_of_xml_may_be_mixed(tmp_path):
    path = tmp_path / "a.xml"
    words = "<architecture>alexnet</architecture><data_location>.</data_location><batch_size>8</batch_size>"
    path.write_text(f"<experiment>{words}<data size='64'/><train epochs='2'/></experiment>")
    found = read_config(path).config
    assert (found.train.batch, found.train.epochs) == (8, 2)
    assert found.data == FolderData(path=tmp_path, size=64)


def test_options_in_xml_have_types(tmp_path):
    path = tmp_path / "a.xml"
    path.write_text(
        "<laptime><network><name>vgg11</name><options batch_norm='true' dropout='0.25'/></network></laptime>"
    )
    assert read_config(path).config.network.options == {"batch_norm": True, "dropout": 0.25}


# -- no traceback for any bytes ------------------------------------------------------------------------------

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)
keys = st.sampled_from(
    [*names(), "network", "data", "train", "network.options", "network.options.size", "zzz"]
)
often = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def answered(path, settings=()):
    """A configuration or a `ConfigError`; anything else fails the test."""
    try:
        found = read_config(path, settings)
    except ConfigError as error:
        first, *others = str(error).split("\n")
        assert first
        assert len(others) != 1
        assert all(line.startswith("  ") and line.isprintable() for line in others)
    else:
        assert isinstance(found, Resolved)
        json.dumps(found.config.model_dump(mode="json"), allow_nan=False)


@pytest.mark.parametrize("suffix", SUFFIXES)
@often
@given(data=st.binary(max_size=60) | st.text(alphabet=string.printable, max_size=60).map(str.encode))
@example(data=b"a: !!float ''")
@example(data=b"a: !!bool perhaps")
@example(data=b"a: 2001-99-99")
@example(data=b"x = " + b"9" * 5000)
@example(data=b"network = 'zener4'\ntrain.batch = 0x" + b"f" * 5000)
@example(data=b'<?xml version="1.0" encoding="utf-7"?><laptime/>')
def test_no_bytes_end_in_a_traceback(suffix, data, tmp_path):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(data)
    answered(path)


@often
@given(tree=st.dictionaries(keys, values, max_size=4))
@example(tree={"network.options": 5, "network.options.size": 6})
def test_no_values_end_in_a_traceback(tree, tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(yaml.safe_dump({"network": "zener4", **tree}, allow_unicode=True), "utf-8")
    answered(path)


@often
@given(key=keys | st.text(max_size=6), value=st.text(max_size=12))
def test_no_setting_ends_in_a_traceback(key, value, tmp_path):
    path = tmp_path / "a.toml"
    path.write_text('network = "zener4"')
    answered(path, [f"{key}={value}"])


@often
@given(name=st.text(max_size=300))
def test_no_file_name_ends_in_a_traceback(name, tmp_path):
    answered(tmp_path / name)


def test_a_tree_is_read_as_it_is_written(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("[train]\nbatch = 3")
    assert read_tree(path) == {"train": {"batch": 3}}
