"""The callbacks for other trainers record what `laptime run` records, and change nothing."""

import pytest

import laptime
from tests.cases.test_steps import EXPECTED

SANITY_STEPS = {"hugging_face": 0, "lightning_module": 2}  # Lightning calls no callback's start before them


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("hugging_face", ["callback"]),
        ("hugging_face", ["checkpointing", "callback"]),
        ("lightning_module", []),
    ],
    ids=["transformers", "transformers with activation checkpointing", "lightning"],
)
def test_a_callback_records_the_steps_that_the_script_makes(name, arguments, trained, case):
    bare, recorded, run = trained(name, arguments)
    assert (recorded.status, recorded.last_line) == (0, bare.last_line), recorded.stderr
    expected, first = EXPECTED[name], SANITY_STEPS[name]
    assert [step.optimizer_step for step in run.steps] == expected.updates[first:]
    assert [step.epoch for step in run.steps] == expected.epochs[first:]
    assert [step.samples for step in run.steps] == expected.samples[first:]
    assert [layer.name for layer in run.network] == case(name).layer_names
    assert (run.status, run.summary["notes"]) == ("finished", [])


@pytest.fixture
def trained(with_libraries, tmp_path):
    """Run a script without and with its callback."""

    def trained(name, arguments):
        plain = [word for word in arguments if word != "callback"]
        out = tmp_path / "run"
        bare = with_libraries.python(name, plain, tmp_path / "without")
        recorded = with_libraries.python(name, [*arguments, str(out)], tmp_path / "with")
        return bare, recorded, laptime.load(out)

    return trained
