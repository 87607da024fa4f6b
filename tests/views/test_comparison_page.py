"""The page of several runs: what it says of numbers that are known, and that odd runs still make a page."""

import json

import numpy as np
import pytest
from plotly import graph_objects
from tests.runs.samples import HOSTILE, a_step, start
from tests.views.comparisons import a_run
from tests.views.samples import a_rich_run

from laptime.model import Stage
from laptime.render.html.comparison_page import comparison_page
from laptime.render.html.page import standalone
from laptime.runs import load, schema
from laptime.views.comparison import several
from laptime.views.comparison.several import differing_ends, groups_of
from laptime.views.comparison.sides import compare
from laptime.views.format import distinct


def page_of(*paths, **more):
    return comparison_page([[load(path) for path in paths]], **more)


def sections(page):
    return {section.name: section for section in page.sections}


def figures(page):
    return {figure.name: figure for section in page.sections for figure in section.figures}


def table(page, name):
    found = next(one for section in page.sections for one in section.tables if one.name == name)
    rows = [[getattr(cell, "text", cell) for cell in row] for row in found.rows]
    return [dict(zip(found.head, row, strict=True)) for row in rows]


def check(page):
    """Every figure is one that Plotly takes, no two have a name, and the page can be written."""
    drawn = [figure for section in page.sections for figure in section.figures]
    assert len({figure.name for figure in drawn}) == len(drawn)
    for figure in drawn:
        document = figure.document()
        json.dumps(document, allow_nan=False)
        graph_objects.Figure(document["data"], document["layout"])
    assert "<h1>" in standalone(page)
    return page


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A run, and one whose steps take half as long again."""
    root = tmp_path_factory.mktemp("pair")
    return a_run(root / "base"), a_run(root / "new", scale=1.5, seed=7, lr=0.1)


@pytest.fixture(scope="module")
def of_two(pair):
    return check(page_of(*pair))


def test_two_runs_are_a_and_b(of_two):
    assert of_two.title == "new against base"
    assert of_two.about[:2] == ["A: base", "B: new"]


def test_the_first_tile_is_the_ratio_of_steps_with_its_interval_and_verdict(of_two):
    tile = of_two.tiles[0]
    assert float(tile.value) == pytest.approx(1.5, rel=0.02)
    assert tile.note.startswith("95 %: 1.")
    assert tile.note.endswith("slower")
    assert tile.tone == "bad"


def test_a_row_for_each_run_with_its_ratio_to_the_first(of_two):
    first, second = table(of_two, "runs")
    assert (first["run"], first["ratio"], first["it is"]) == ("base", "1", "baseline")
    assert float(first["step ms"]) == pytest.approx(10.0, rel=0.02)
    assert float(second["step ms"]) == pytest.approx(15.0, rel=0.02)
    assert float(second["ratio"]) == pytest.approx(1.5, rel=0.02)
    assert (second["it is"], second["status"], second["steps"]) == ("slower", "finished", "40")
    assert second["val. loss"] == "2"


def test_medians_are_drawn_with_their_intervals_around_them(of_two):
    (trace,) = figures(of_two)["step-intervals"].traces
    assert trace["y"] == ["base", "new"]
    assert trace["x"] == pytest.approx([10.0, 15.0], rel=0.02)
    for side in ("array", "arrayminus"):
        assert all(0 <= reach < 0.2 for reach in trace["error_x"][side])


def test_the_books_side_by_side_add_up_to_the_step(of_two):
    figure = figures(of_two)["books"]
    means = [figure.traces[place] for place in figure.choices[0].shows]
    assert {trace["name"] for trace in means} == {"forward", "backward", "update"}
    assert sum(trace["x"][1] for trace in means) == pytest.approx(15.0, rel=0.02)
    shares = [figure.traces[place] for place in figure.choices[1].shows]
    assert sum(trace["x"][0] for trace in shares) == pytest.approx(100.0, rel=0.01)


def test_boxes_hold_the_middle_half_of_the_steps(of_two):
    first, second = figures(of_two)["spreads"].traces
    assert first["lowerfence"] <= first["q1"] <= first["median"] <= first["q3"] <= first["upperfence"]
    assert second["median"][0] == pytest.approx(15.0, rel=0.02)


def test_layers_are_ratios_coloured_by_verdict(of_two):
    (trace,) = figures(of_two)["layer-ratios"].traces
    assert trace["name"] == "slower"
    assert trace["y"] == ["conv", "fc"]
    assert trace["x"] == pytest.approx([1.5, 1.5], rel=0.02)
    assert [row["B is"] for row in table(of_two, "layers")] == ["slower", "slower"]


def test_layers_side_by_side_have_a_bar_for_each_run(of_two):
    first, second = figures(of_two)["layers"].traces
    assert first["x"] == pytest.approx([5.0, 5.0], rel=0.02)
    assert second["x"] == pytest.approx([7.5, 7.5], rel=0.02)


def test_steps_and_losses_are_laid_over_each_other(of_two):
    assert [trace["name"] for trace in figures(of_two)["step-times"].traces] == ["base", "new"]
    assert figures(of_two)["loss"].choices[0].name == "over seconds"


def test_only_keys_that_differ_are_in_the_table_of_differences(of_two):
    assert table(of_two, "config-differences") == [{"key": "lr", "base": "", "new": "0.1"}]


def test_what_makes_a_verdict_stands_beside_the_table(of_two):
    (told,) = sections(of_two)["runs"].sentences
    assert "taken to be 3 %, or half of the interquartile range of their steps" in told
    assert "`no difference`: interval and noise together stay within 5 % of 1" in told


def test_layers_of_unlike_networks_are_not_drawn_side_by_side(tmp_path):
    runs = [a_run(tmp_path / n, layers=("stem", *(f"{n}{at}" for at in range(5))), steps=6) for n in "abc"]
    page = check(page_of(*runs))
    assert sections(page)["layers"].sentences == [
        "The networks differ: 1 of 16 layers are in more than one run, too few to draw the layers side by "
        "side. Each run's own page has them."
    ]
    assert not {"layers", "layer-map"} & set(figures(page))


def test_many_keys_that_one_run_alone_has_are_folded(tmp_path):
    settings = {f"key{number}": number for number in range(9)}
    page = page_of(a_run(tmp_path / "a", lr=1, steps=6), a_run(tmp_path / "b", lr=2, steps=6, **settings))
    assert table(page, "config-differences") == [{"key": "lr", "a": "1", "b": "2"}]
    assert len(table(page, "config-alone")) == 9
    found = [one for section in page.sections for one in section.tables if one.name.startswith("config")]
    assert [one.folded for one in found] == [False, True]


def test_a_loss_that_is_no_number_is_told_in_the_table_of_runs(tmp_path):
    page = page_of(a_run(tmp_path / "a", steps=6), a_run(tmp_path / "b", steps=6, loss=float("nan")))
    assert [row["val. loss"] for row in table(page, "runs")] == ["2", "not finite"]


def test_several_runs_of_different_networks_are_said_to_be_first(tmp_path):
    paths = [a_run(tmp_path / name, network={"name": name}) for name in ("alexnet", "vgg", "zener")]
    page = comparison_page([[load(path) for path in paths]])
    assert sections(page)["first"].bullets[0] == "the networks differ: alexnet, vgg, zener"


def test_what_must_be_known_is_said_first(of_two):
    assert any("one run each" in note for note in sections(of_two)["first"].bullets)
    assert "profiling" not in sections(of_two)


def test_other_batches_are_compared_by_sample(tmp_path):
    page = check(page_of(a_run(tmp_path / "a"), a_run(tmp_path / "b", scale=2.0, batch=128)))
    tiles = {tile.name: tile for tile in page.tiles}
    assert float(tiles["time of a sample, B / A"].value) == pytest.approx(1.0, rel=0.02)
    assert [row["batch"] for row in table(page, "runs")] == ["64", "128"]
    assert any("compared per sample" in note for note in sections(page)["first"].bullets)


def test_with_and_without_profiling_is_a_figure(tmp_path):
    profiled = a_run(tmp_path / "with", scale=1.2, record={"profile": True})
    page = check(page_of(profiled, a_run(tmp_path / "without", seed=1, record={"profile": False})))
    figure = figures(page)["profiling-cost"]
    assert figure.traces[0]["x"] == pytest.approx([10.0, 12.0], rel=0.02)
    assert figure.traces[0]["customdata"] == ["without", "with"]
    tiles = {tile.name: tile.value for tile in page.tiles}
    assert float(tiles["cost of profiling"].split()[0]) == pytest.approx(20, abs=2)


def test_repetitions_are_groups_that_are_compared_over_runs(tmp_path):
    paths = [
        a_run(tmp_path / point / f"rep-{seed}", scale=scale, seed=seed, train={"seed": seed, "of": point})
        for point, scale in (("a", 1.0), ("b", 1.5))
        for seed in (1, 2)
    ]
    page = check(page_of(*paths))
    first, second = table(page, "groups")
    assert (first["group"], first["runs"], second["group"]) == ("a", "2", "b")
    assert float(second["ratio"]) == pytest.approx(1.5, rel=0.02)
    assert page.title == "b against a"
    assert any(
        "2 runs against 2: the intervals are over runs" in note for note in sections(page)["first"].bullets
    )
    assert len(table(page, "runs")) == 4
    assert "it is" not in table(page, "runs")[0]


def test_a_page_groups_runs_as_compare_does(tmp_path):
    given = [
        [
            load(a_run(tmp_path / side / name, seed=seed, scale=scale))
            for seed, name in enumerate("xyz", start)
        ]
        for side, scale, start in (("base", 1.0, 1), ("new", 1.5, 5))
    ]
    page = check(comparison_page(given))
    assert page.about[:2] == ["A: base (3 runs)", "B: new (3 runs)"]
    step = compare(*given).stages[Stage.TRAIN].step
    assert page.tiles[0].value == f"{step.ratio:.3f}"
    assert page.tiles[0].note == f"95 %: {step.low:.3f} to {step.high:.3f}, {step.verdict}"


def test_runs_of_identical_code_are_called_neither_faster_nor_slower(tmp_path):
    noise = np.random.default_rng(1)
    paths = [
        a_run(tmp_path / side / f"rep-{number}", seed=number, scale=float(np.exp(noise.normal(0, 0.04))))
        for side in "ab"
        for number in (1, 2, 3)
    ]
    for page in (page_of(*paths), page_of(*paths[:3]), page_of(*paths[:2])):
        words = [
            cell for section in page.sections for one in section.tables for row in one.rows for cell in row
        ]
        assert not {"faster", "slower"} & set(map(str, words))
        assert {tile.tone for tile in page.tiles} <= {"", "fair"}


def test_runs_in_one_place_and_of_one_configuration_but_for_the_seed_are_repetitions(tmp_path):
    def grouped(*runs, given=None):
        loaded = [load(a_run(tmp_path / name, steps=3, **config)) for name, config in runs]
        groups = groups_of(given(loaded) if given else [loaded])
        return [tuple(name for name, _ in group) for group in groups]

    seeds = [{"train": {"seed": seed}} for seed in (1, 2)]
    assert grouped(("a/rep-1", seeds[0]), ("a/rep-2", seeds[1])) == [("rep-1", "rep-2")]
    assert grouped(("b/seed=1", seeds[0]), ("b/seed=2", seeds[1])) == [("seed=1", "seed=2")]
    assert grouped(("c/rep-1", {"lr": 1}), ("c/rep-2", {"lr": 2})) == [("rep-1",), ("rep-2",)]
    assert grouped(("before", {}), ("after", {})) == [("before",), ("after",)]
    folders = grouped(("d/x", {}), ("d/y", {}), ("e/x", {}), given=lambda runs: [runs[:2], runs[2:]])
    assert folders == [("d/x", "d/y"), ("e/x",)]


def test_two_repetitions_of_one_configuration_are_compared_with_each_other(tmp_path):
    page = page_of(*(a_run(tmp_path / f"rep-{number}", seed=number) for number in (1, 2)))
    assert page.title == "rep-2 against rep-1"
    assert len(table(page, "groups")) == 1


def test_many_runs_have_a_fastest_and_a_slowest(tmp_path):
    scales = {"slow": 3.0, "fast": 1.0, "middle": 2.0}
    page = check(page_of(*(a_run(tmp_path / name, scale=scale) for name, scale in scales.items())))
    tiles = {tile.name: tile for tile in page.tiles}
    assert tiles["fastest step"].note == "fast"
    assert tiles["slowest step"].note == "slow, 3.00 times the fastest"
    (trace,) = figures(page)["layer-map"].traces
    assert trace["x"] == ["fast", "middle"]
    assert trace["text"][0] == ["0.333", "0.667"]


def test_runs_beyond_the_most_are_counted_and_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(several, "MOST_RUNS", 3)
    path = a_run(tmp_path / "one", steps=3)
    page = check(page_of(*[path] * 5))
    assert len(table(page, "runs")) == 3
    assert "2 runs beyond the first 3 are left out" in sections(page)["first"].bullets
    assert page.subtitle.startswith("5 runs")


def test_runs_of_other_networks_without_layers_or_of_one_step_still_make_a_page(tmp_path):
    runs = [
        a_run(tmp_path / "base"),
        a_run(tmp_path / "other", layers=("conv", "attention")),
        a_run(tmp_path / "bare", layers=()),
        a_run(tmp_path / "single", steps=1, loss=float("nan")),
        a_rich_run(tmp_path / "rich"),
    ]
    for other in runs[1:4]:
        check(page_of(other, runs[0]))
    page = check(page_of(*runs))
    assert len(table(page, "runs")) == 5
    assert any("NaN or infinite" in line for line in sections(page)["learning"].bullets)


def test_a_failed_run_without_steps_is_said_to_have_none(tmp_path):
    start(tmp_path / "failed").close("failed", {})
    failed, base = tmp_path / "failed", a_run(tmp_path / "base")
    pages = [check(page_of(base, failed)), check(page_of(failed, failed))]
    for page in pages:
        assert any("no training step to compare in" in line for line in sections(page)["first"].bullets)
    assert table(pages[0], "runs")[1]["step ms"] == "-"


def test_the_stage_that_both_have_is_compared(tmp_path):
    writer = start(tmp_path / "held")
    rows = [a_step(number, stage=Stage.VALIDATION) for number in range(8)]
    writer.append("steps", schema.steps.table(rows))
    writer.close("finished", {})
    page = check(page_of(a_run(tmp_path / "base"), tmp_path / "held"))
    assert page.tiles[0].name == "validation step, B / A"
    assert float(page.tiles[0].value) == pytest.approx(20.0)


def test_hostile_names_stay_text(tmp_path):
    evil = "<img src=x onerror=alert(1)>"
    paths = [a_run(tmp_path / name, layers=tuple(HOSTILE), **{evil: name}) for name in ("a", "b")]
    page = check(page_of(*paths, names=[evil, evil]))
    assert page.about[:2] == [f"A: {evil}", f"B: {evil} (2)"]
    text = standalone(page)
    assert evil not in text
    assert "<script>alert(1)" not in text
    drawn = json.dumps([figure.document() for figure in figures(page).values()])
    assert "<img" not in drawn
    assert "<script" not in drawn


def test_a_run_of_many_steps_adds_little_to_a_page(tmp_path):
    path = a_run(tmp_path / "one", steps=900, layers=("conv",))
    page = page_of(path, path)
    assert len(json.dumps([figure.document() for figure in figures(page).values()])) < 120_000


def test_names_are_the_ends_of_paths_that_differ():
    assert differing_ends(["exp/a/rep-1", "exp/b/rep-1"]) == ["a/rep-1", "b/rep-1"]
    assert differing_ends(["runs/one"]) == ["one"]
    assert differing_ends(["same", "same"]) == ["same", "same"]
    assert distinct(["same", "same", "other"]) == ["same", "same (2)", "other"]
