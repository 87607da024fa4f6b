import json
import re

from tests.store.samples import HOSTILE, a_finished_run

from laptime.report import content
from laptime.store import load


def test_show_prints_the_books_and_the_layers(laptime, run):
    done = laptime("show", run)
    assert done.exit_code == 0
    assert "explained 98.0 %" in done.stdout
    assert "conv1" in done.stdout
    assert done.stderr == ""


def test_show_json_is_one_document_with_the_content(laptime, run):
    done = laptime("show", run, "--json")
    assert json.loads(done.stdout) == {"runs": [content(load(run))]}


def test_show_takes_several_runs(laptime, run, tmp_path):
    other = a_finished_run(tmp_path / "other", ["lstm"])
    text = laptime("show", run, other).stdout
    assert text.index("conv1") < text.index("lstm")
    assert len(json.loads(laptime("show", run, other, "--json").stdout)["runs"]) == 2


def test_show_all_shows_every_layer(laptime, tmp_path):
    path = a_finished_run(tmp_path / "run", [f"layer{i}" for i in range(40)])
    assert "more layers" in laptime("show", path).stdout
    assert "layer17 " in laptime("show", path, "--all").stdout


def test_names_survive_show(process, tmp_path):
    path = a_finished_run(tmp_path / "run", [*HOSTILE, "[red]x"])
    done = process("show", path, "--all", COLUMNS="140")
    assert done.returncode == 0
    assert "[red]x" in done.stdout
    layers = json.loads(process("show", path, "--json").stdout)["runs"][0]["train"]["layers"]
    assert {one["layer"] for one in layers} >= {*HOSTILE, "[red]x"}


def test_sixty_columns_are_enough(process, run):
    done = process("show", run, COLUMNS="60")
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines()[1:])) <= 60


def test_a_folder_of_runs_is_one_table(laptime, tmp_path):
    for number in (1, 2):
        a_finished_run(tmp_path / "rep" / f"rep-{number}", ["conv"])
    text = laptime("show", "rep").stdout
    assert text.startswith("rep: 2 runs\n")
    assert re.search(r"run +status +steps +step ms +samples/s +loss +val. loss +val. top-1", text)
    assert re.search(r"rep-2 +finished +8 +100.00 +640 ", text)
    document = json.loads(laptime("show", "rep", "rep/rep-1", "--json").stdout)
    assert [row["trial"] for row in document["groups"][0]["runs"]] == ["rep-1", "rep-2"]
    assert len(document["runs"]) == 1


def test_a_folder_without_runs_is_told_in_one_line(laptime, tmp_path):
    (tmp_path / "empty").mkdir()
    done = laptime("show", "empty")
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
