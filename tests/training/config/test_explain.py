"""`--explain`: every effective value, why it has it, and what it means."""

from laptime.training.config import fields
from laptime.training.config.reading import explain, read_config


def rows(folder, text, *settings):
    path = folder / "a.toml"
    path.write_text(text)
    return {key: (value, why, meaning) for key, value, why, meaning in explain(read_config(path, settings))}


def test_every_key_of_the_schema_is_told(tmp_path):
    found = rows(tmp_path, 'network = "zener4"')
    wanted = set(fields.keys("zener")) - {fields.OPTIONS}
    assert wanted <= set(found)
    assert all(all(cells) for cells in found.values())


def test_a_value_tells_where_it_came_from(tmp_path):
    found = rows(tmp_path, 'network = "zener4"\n[train]\nbatch = 64', "epochs=3")
    assert found["train.batch"] == ("64", str(tmp_path / "a.toml"), "Samples in a step, on each device.")
    assert found["train.epochs"][:2] == ("3", "--set")
    assert found["train.accumulate"][:2] == ("1", "default")
    assert found["data.kind"][:2] == ("zener", "default of network zener4")
    assert found["name"][:2] == ("a", "the file's name")


def test_what_is_left_open_is_decided(tmp_path):
    found = rows(tmp_path, 'network = "vgg11"\n[optimizer]\nname = "adadelta"\n[train]\ndevice = "cpu"')
    assert found["optimizer.lr"][:2] == ("1", "default of adadelta")
    assert found["data.shape"][:2] == ("[3, 224, 224]", "default of network vgg11")
    assert found["data.classes"][:2] == ("1000", "default of network vgg11")
    assert found["loader.pin_memory"][:2] == ("false", "device cpu")
    assert int(found["train.threads"][0]) > 0
    assert found["loss.name"][1] == "default of network vgg11"


def test_the_networks_options_are_told_with_their_defaults(tmp_path):
    found = rows(tmp_path, 'network = "vgg16"', "network.options.batch_norm=true")
    assert found["network.options.batch_norm"][:2] == ("true", "--set")
    assert found["network.options.depth"][:2] == ("16", "default of network vgg16")
    assert found["network.options.num_classes"][:2] == ("as the data has", "default of network vgg16")


def test_a_network_of_ones_own_is_explained_without_it(tmp_path):
    found = rows(tmp_path, 'network = "no.such:thing"\ndata = "digits"', "network.options.width=3")
    assert found["network.options.width"][:2] == ("3", "--set")
