"""A training with a target ends when a validation reaches it, on all ranks after the same step."""

import json
import sys

import pytest
import torch
from tests.training import test_loop as loop
from tests.training.ranks_here import Training, train_on_ranks
from tests.training.test_loop import configured, data, training

import laptime
from laptime.errors import ConfigError
from laptime.training.config.reading import explain, read_config
from laptime.training.data import Data
from laptime.views.format import target as in_words
from laptime.views.run_document import content
from laptime.views.run_view import run_view


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.setitem(sys.modules, loop.__name__, loop)


def trained(out, *, until=None, epochs=12, **options):
    train = {"batch": 8, "epochs": epochs, "until": until or {}}
    slowly = {"name": "adam", "lr": 0.002}
    return training(out, configured(train=train, optimizer=slowly), **options)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.toml", "network = 'zener4'\ntrain = {until = {loss = 0.5}}"),
        ("a.toml", "network = 'zener4'\n[train.until]\nloss = 0.5"),
        ("a.yaml", "network: zener4\ntrain: {until: {loss: 0.5}}"),
        ("a.xml", "<laptime network='zener4'><train><until><loss>0.5</loss></until></train></laptime>"),
        ("a.xml", "<laptime network='zener4'><train><until loss='0.5'/></train></laptime>"),
    ],
)
def test_every_format_takes_a_target_and_explain_tells_it(name, text, tmp_path):
    (tmp_path / name).write_text(text)
    resolved = read_config(tmp_path / name)
    assert resolved.config.train.until.metric == "loss"
    rows = {row[0]: row[1:] for row in explain(resolved)}
    assert rows["train.until.loss"][:2] == ("0.5", str(tmp_path / name))
    assert rows["train.until.top1"][:2] == ("none", "default")


def test_settings_replace_the_target_of_the_file(tmp_path):
    (tmp_path / "a.toml").write_text("network = 'zener4'\ntrain = {until = {loss = 0.5}}")
    other = read_config(tmp_path / "a.toml", ["train.until.loss=none", "top1=0.9"]).config.train.until
    assert (other.metric, other.top1) == ("top1", 0.9)


@pytest.mark.parametrize("until", [{"loss": 0.9}, {"top1": 0.65}])
def test_a_training_ends_with_the_validation_that_reaches_its_target(until, tmp_path):
    whole = trained(tmp_path / "whole").run()
    run = trained(tmp_path / "run", until=until).run()
    metric = next(iter(until))

    def reaches(epoch):
        steps = [step for step in whole.steps if step.stage == "validation" and step.epoch == epoch]
        mean = sum(getattr(step, metric) * step.samples for step in steps) / sum(s.samples for s in steps)
        return mean <= until["loss"] if metric == "loss" else mean >= until["top1"]

    first = next(epoch for epoch in range(12) if reaches(epoch))
    assert 0 < first < 11
    told = run.summary["target"]
    assert told["metric"] == metric
    assert told["value"] == until[metric]
    assert told["reached"]
    assert (told["epoch"], told["step"]) == (first + 1, 5 * (first + 1))
    assert [step.stage for step in run.steps].count("train") == told["step"]
    assert told["seconds"] == pytest.approx(sum(step.wall_s for step in run.steps), rel=1e-6)
    assert in_words(run_view(run).target).startswith(f"target {'loss' if metric == 'loss' else 'top-1'} ")
    assert content(run)["target"] == told


def test_a_target_that_is_not_reached_is_told_with_the_time_that_was_spent(tmp_path):
    run = trained(tmp_path / "run", until={"loss": 0.001}, epochs=2).run()
    told = run.summary["target"]
    assert not told["reached"]
    assert (told["step"], told["epoch"]) == (10, 2)
    assert told["seconds"] > 0
    assert "not reached in" in in_words(run_view(run).target)
    assert run_view(training(tmp_path / "none").run()).target is None


def test_a_target_needs_held_out_data(tmp_path):
    with pytest.raises(ConfigError, match="no data is held out"):
        trained(tmp_path / "run", until={"loss": 1.0}, given=Data(train=data().train, validation=None))


def test_a_reached_target_is_complete_and_a_lower_one_goes_on(tmp_path):
    first = trained(tmp_path / "run", until={"loss": 0.9}).run()
    assert trained(tmp_path / "run", until={"loss": 0.9}, resume=True).done
    on = trained(tmp_path / "run", until={"loss": 0.85}, resume=True)
    assert not on.done
    told = on.run().summary["target"]
    assert told["value"] == 0.85
    assert told["step"] > first.summary["target"]["step"]
    assert told["seconds"] > first.summary["target"]["seconds"]


def test_ranks_end_after_the_same_step(tmp_path):
    threads = torch.get_num_threads()
    text = """
network = "zener4"
data = {kind = "zener", samples = 320, validation_samples = 30}
train = {batch = 16, epochs = 12, threads = 1, device = "cpu", until = {loss = 1.45}}
checkpoint = {every = 0}
record = {profile = false}
"""
    run = train_on_ranks([Training(text, tmp_path / "cards")], 2)["cards"]
    torch.set_num_threads(threads)
    told = json.loads((run.path / "run.json").read_text())["summary"]["target"]
    assert told["reached"]
    assert told["epoch"] < 12
    by_rank = [[step.step for step in laptime.load(run.path).steps if step.rank == rank] for rank in (0, 1)]
    assert by_rank[0] == by_rank[1]
