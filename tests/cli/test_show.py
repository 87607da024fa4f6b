import json
import re

from tests.runs.samples import HOSTILE, a_finished_run, a_network, a_step, start
from tests.views.views import losing

from laptime.runs import load, schema
from laptime.views.run_document import content


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
    assert "… 27 more" in laptime("show", path).stdout
    assert "layer17 " in laptime("show", path, "--all").stdout


def layers_of(done):
    return [one["layer"] for one in json.loads(done.stdout)["runs"][0]["train"]["layers"]]


def test_json_has_layers_as_in_the_network_unless_another_order_is_asked_for(laptime, tmp_path):
    path = a_finished_run(tmp_path / "run", ["b10", "b2", "a"])
    assert layers_of(laptime("show", path, "--json"))[:3] == ["b10", "b2", "a"]
    assert layers_of(laptime("show", path, "--json", "--sort", "name"))[-3:] == ["a", "b2", "b10"]
    sorted_, plain = (
        json.loads(laptime("show", path, "--json", *more).stdout)["runs"][0]
        for more in (("--sort", "name"), ())
    )
    by_name = sorted(plain["train"]["layers"], key=str)
    assert sorted(sorted_["train"]["layers"], key=str) == by_name


def test_layers_are_sorted_as_asked_for(laptime, tmp_path):
    path = a_finished_run(tmp_path / "run", ["b10", "b2"])
    text = laptime("show", path, "--sort", "name").stdout
    assert "in ms, by name" in text
    assert text.index("  b2 ") < text.index("  b10 ")


def test_an_unknown_order_is_wrong_usage_that_names_the_known_ones(laptime, run):
    done = laptime("show", run, "--sort", "size")
    assert done.exit_code == 2
    assert "'network'" in done.stderr


def test_colour_is_for_terminals_unless_asked_for(laptime, run, monkeypatch):
    for variable in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")  # a dumb one has no colours, whoever asks
    assert "\x1b" not in laptime("show", run).stdout
    assert "\x1b[35m" in laptime("show", run, "--color").stdout
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[35m" in laptime("show", run).stdout
    assert "\x1b[35m" not in laptime("show", run, "--no-color").stdout
    assert "\x1b" not in laptime("show", run, "--json").stdout


def test_names_survive_show(process, tmp_path):
    path = a_finished_run(tmp_path / "run", [*HOSTILE, "[red]x"])
    done = process("show", path, "--all", COLUMNS="140")
    assert done.returncode == 0
    assert "[red]x" in done.stdout
    layers = json.loads(process("show", path, "--json").stdout)["runs"][0]["train"]["layers"]
    assert {one["layer"] for one in layers} >= {*HOSTILE, "[red]x"}


def test_sixty_columns_of_plain_characters_are_enough(process, run):
    done = process("show", run, COLUMNS="60", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert "?" not in done.stdout
    assert max(map(len, done.stdout.splitlines()[1:])) <= 60


def test_a_folder_of_runs_is_one_table(laptime, tmp_path):
    for number in (1, 2):
        a_finished_run(tmp_path / "rep" / f"rep-{number}", ["conv"])
    text = laptime("show", "rep").stdout
    assert text.startswith("rep: 2 runs\n")
    assert re.search(r"run +status +steps +step ms +samples/s +loss +val. loss +val. top-1", text)
    assert re.search(r"rep-2 +finished +8 +100 +640 ", text)
    document = json.loads(laptime("show", "rep", "rep/rep-1", "--json").stdout)
    assert [row["trial"] for row in document["groups"][0]["runs"]] == ["rep-1", "rep-2"]
    assert len(document["runs"]) == 1


def test_a_loss_that_is_no_number_is_told_in_the_table_of_a_folder(laptime, tmp_path):
    losing(tmp_path / "rep" / "lost")
    a_finished_run(tmp_path / "rep" / "other", ["conv"])
    text = laptime("show", "rep").stdout
    assert re.search(r"lost +failed .* not finite +- ", text)
    (lost, other) = json.loads(laptime("show", "rep", "--json").stdout)["groups"][0]["runs"]
    assert (lost["train"]["not_finite"], other["train"]["not_finite"]) == (["loss"], [])


def test_a_damaged_run_does_not_hide_the_others_of_its_folder(laptime, tmp_path):
    a_finished_run(tmp_path / "rep" / "good", ["conv"])
    (tmp_path / "rep" / "bad").mkdir()
    (tmp_path / "rep" / "bad" / "run.json").write_bytes(b"\x00\xff")
    done = laptime("show", "rep")
    assert done.exit_code == 0
    assert re.search(r"bad +damaged ", done.stdout)
    assert re.search(r"good +finished +8 ", done.stdout)
    assert "run.json" in done.stderr


def test_a_folder_without_runs_is_told_in_one_line(laptime, tmp_path):
    (tmp_path / "empty").mkdir()
    done = laptime("show", "empty")
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)


def test_a_saved_prediction_is_shown_as_it_was_predicted(laptime, tmp_path):
    told = laptime("predict", "alexnet", "--device", "h200", "--batch", "64")
    saved = laptime("predict", "alexnet", "--device", "h200", "--batch", "64", "--json").stdout
    (tmp_path / "p.json").write_text(saved)
    assert laptime("show", "p.json").stdout == told.stdout
    document = json.loads(laptime("show", "p.json", "--json").stdout)
    assert document["runs"] == []
    before = json.loads(saved)["predictions"][0]
    assert document["saved"][0]["predictions"][0].items() <= before.items()


def test_a_file_that_is_no_prediction_is_told_in_one_line(laptime, tmp_path):
    for text in ("{}", "[]", "nonsense", '{"predictions": [{"network": 1}]}'):
        (tmp_path / "p.json").write_text(text)
        done = laptime("show", "p.json")
        assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
        assert "is no prediction" in done.stderr


def test_epochs_and_updates_are_told_where_the_run_has_them(laptime, tmp_path):
    writer = start(tmp_path / "run")
    writer.network(a_network(["fc"]))
    steps = [a_step(n, epoch=n // 4, optimizer_step=(n + 1) // 2) for n in range(12)]
    writer.append("steps", schema.steps.table(steps))
    writer.close("finished", {})
    told = laptime("show", tmp_path / "run").stdout
    assert "· 3 epochs" in told
    assert "6 optimizer updates" in told
    (shown,) = json.loads(laptime("show", tmp_path / "run", "--json").stdout)["runs"]
    assert (shown["train"]["epochs"], shown["train"]["updates"]) == (3, 6)
