import json
import sys
import tomllib

import pytest
import typer
from tests.training.data.sync.servers import a_web_server
from typer.testing import CliRunner

from laptime.cli.data import data
from laptime.cli.outcome import Commands
from laptime.training.config import Config
from laptime.training.data import NetworkInput, open_data
from laptime.training.data.images import decoders
from laptime.training.data.zener import SYMBOLS

app = typer.Typer(cls=Commands)
app.add_typer(data)


@app.callback()
def _options():
    """So that `data` is a verb among others."""


@pytest.fixture
def laptime(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def call(*arguments):
        return CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False)

    return call


@pytest.fixture
def there(tmp_path):
    """A remote place of two classes."""
    for name in ("there/cat/1.jpg", "there/cat/2.jpg", "there/dog/1.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * 1000)
    return tmp_path / "there"


def test_sync_tells_what_came_and_what_was_here(laptime, there):
    first = laptime("data", "sync", there, "here")
    assert first.exit_code == 0
    assert "2 classes in here: 3 files brought (0.0 MB), 0 here already, 0 verified" in first.stdout
    assert "0 files brought (0.0 MB), 3 here already" in laptime("data", "sync", there, "here").stdout


def test_sync_json_is_the_whole_summary(laptime, there):
    (there / "cat" / ".hidden").write_bytes(b"")
    done = laptime("data", "sync", there, "here", "--classes", "cat", "--json")
    summary = json.loads(done.stdout)
    assert (summary["files"], summary["bytes"], summary["skipped"], summary["classes"]) == (
        2,
        2000,
        0,
        ["cat"],
    )
    assert summary["refused"] == [{"name": "cat/.hidden", "reason": "it is hidden"}]
    assert done.stderr == "laptime: refused 'cat/.hidden': it is hidden\n"


def test_classes_come_from_a_file_too(laptime, there, tmp_path):
    (tmp_path / "classes.txt").write_text("# animals\n\ndog\n")
    assert laptime("data", "sync", there, "here", "--classes-file", "classes.txt").exit_code == 0
    assert [path.name for path in (tmp_path / "here").iterdir() if path.is_dir()] == ["dog"]


def test_sync_over_http(laptime, there, tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with a_web_server(there) as (_, address):
        assert laptime("data", "sync", address, "here", "--jobs", "2").exit_code == 0
    assert (tmp_path / "here" / "dog" / "1.jpg").read_bytes() == b"x" * 1000


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["there", "here", "--classes", "catt"], "no class 'catt' at"),
        (["nowhere", "here"], "nowhere does not exist; check the address"),
        (["gopher://x/y", "here"], "gopher:// is no kind of address that laptime knows"),
        (["there", "here", "--classes-file", "none"], "none cannot be read (No such file or directory)"),
        (["there", "there/cat"], "hold each other"),
    ],
)
@pytest.mark.usefixtures("there")
def test_what_goes_wrong_is_one_line(laptime, arguments, line):
    done = laptime("data", "sync", *arguments)
    assert done.exit_code == 1
    assert done.stderr.startswith("laptime: ")
    assert line in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [["--classes", "a", "--classes-file", "b"], ["--classes", ","], ["--jobs", "0"]],
)
@pytest.mark.usefixtures("there")
def test_wrong_usage_is_told_as_such(laptime, arguments):
    assert laptime("data", "sync", "there", "here", *arguments).exit_code == 2


def test_a_file_of_no_classes_is_told(laptime, there, tmp_path):
    (tmp_path / "classes.txt").write_text("# none\n")
    assert (
        "names no classes" in laptime("data", "sync", there, "here", "--classes-file", "classes.txt").stderr
    )


@pytest.mark.parametrize(("kind", "ending"), [("png", ".png"), ("jpeg", ".jpg")])
def test_zener_writes_a_folder_per_symbol(laptime, tmp_path, kind, ending):
    cv2 = pytest.importorskip("cv2")
    done = laptime("data", "zener", "cards", "--count", 50, "--size", 24, "--format", kind)
    assert done.exit_code == 0
    assert "50 cards of 24x24 pixels in cards" in done.stdout
    for symbol in SYMBOLS:
        files = sorted((tmp_path / "cards" / symbol).iterdir())
        assert [file.name for file in files] == [f"{number:04}{ending}" for number in range(1, 11)]
        assert cv2.imread(str(files[0]), cv2.IMREAD_UNCHANGED).shape == (24, 24)


def test_the_configuration_that_zener_prints_is_one(laptime, tmp_path):
    pytest.importorskip("cv2")
    told = laptime("data", "zener", "some cards", "--count", 5, "--size", 40).stdout
    assert "laptime train zener.toml`:" in told
    config = Config.model_validate(tomllib.loads(told[told.index("[network]") :]))
    assert (config.network.name, config.network.options) == ("zener7", {"size": 40})
    assert (config.data.kind, str(config.data.path), config.data.size) == ("folder", "some cards", 40)


def test_the_same_seed_writes_the_same_cards(laptime, tmp_path):
    pytest.importorskip("cv2")
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        laptime("data", "zener", folder, "--count", 5, "--seed", seed)
    a, b, c = ((tmp_path / folder / "star" / "0001.png").read_bytes() for folder in "abc")
    assert a == b != c


def test_zener_json_tells_how_many_of_each(laptime):
    pytest.importorskip("cv2")
    document = json.loads(laptime("data", "zener", "cards", "--count", 27, "--json").stdout)
    assert sum(document["cards"].values()) == 27
    assert set(document["cards"]) == set(SYMBOLS)
    assert document["folder"] == "cards"


def test_cards_are_not_mixed_with_older_ones(laptime):
    pytest.importorskip("cv2")
    laptime("data", "zener", "cards", "--count", 25)
    again = laptime("data", "zener", "cards", "--count", 5)
    assert again.exit_code == 1
    assert "holds files already; remove them or give another folder" in again.stderr


def test_a_folder_that_cannot_be_written_is_told(laptime, tmp_path):
    pytest.importorskip("cv2")
    (tmp_path / "file").write_text("")
    done = laptime("data", "zener", "file/cards")
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)


@pytest.mark.parametrize(
    "arguments", [["--size", 4], ["--noise", -1], ["--format", "gif"], ["--count", 10**9]]
)
def test_cards_that_cannot_be_drawn_are_wrong_usage(laptime, arguments):
    assert laptime("data", "zener", "cards", *arguments).exit_code == 2


def test_zener_names_the_package_it_misses(laptime, monkeypatch):
    decoders.cache_clear()
    monkeypatch.setitem(sys.modules, "cv2", None)
    done = laptime("data", "zener", "cards")
    assert done.exit_code == 1
    assert "pip install 'laptime[" in done.stderr


def test_images_are_written_by_class_and_never_over_others(laptime, tmp_path):
    done = laptime("data", "images", "made", "--classes", "2", "--per-class", "3", "--json")
    assert json.loads(done.stdout)["images"] == 6
    assert len(list((tmp_path / "made" / "class1").glob("*.jpg"))) == 3
    again = laptime("data", "images", "made")
    assert again.exit_code == 1
    assert "holds files already" in again.stderr


@pytest.mark.parametrize(("count", "cards"), [(20, [4] * 5), (27, [6, 6, 5, 5, 5]), (60, [12] * 5)])
def test_each_symbol_has_a_fifth_of_the_cards(laptime, count, cards):
    document = json.loads(laptime("data", "zener", "cards", "--count", count, "--json").stdout)
    assert list(document["cards"].values()) == cards


@pytest.mark.parametrize("count", [5, 20, 27, 60])
def test_the_batch_that_zener_prints_is_filled_once(laptime, count):
    told = laptime("data", "zener", "cards", "--count", count).stdout
    config = Config.model_validate(tomllib.loads(told[told.index("[network]") :]))
    samples = len(open_data(config.data, NetworkInput(input=(1, 32, 32))).train)
    assert config.train.batch <= samples
    assert config.train.batch == 32 or 2 * config.train.batch > samples


@pytest.mark.parametrize(
    ("per_class", "words"), [(3, "--set train.batch=4\n"), (40, "--set data.path='a b'\n")]
)
def test_the_command_that_images_prints_has_a_batch_that_fits(laptime, per_class, words):
    done = laptime("data", "images", "a b", "--classes", 2, "--per-class", per_class)
    assert done.stdout.endswith(words)


def test_hidden_files_in_every_class_are_refused_in_one_line(laptime, there):
    for name in ("cat", "dog"):
        (there / name / ".DS_Store").write_bytes(b"")
    done = laptime("data", "sync", there, "here")
    assert done.stderr == "laptime: refused 'cat/.DS_Store' and 1 more: it is hidden\n"
