"""docs/reference.md is what the code says."""

from tools.reference import PAGE, reference
from tools.reference.phrases import DOCUMENT, SHOWN

import laptime
from laptime.runs.document import read_document
from laptime.views.run_document import content
from tests.runs.samples import a_finished_run


def test_the_reference_is_up_to_date():
    assert PAGE.read_text("utf-8") == reference(), "run: make docs"


def test_every_public_name_and_every_command_has_its_place():
    text = reference()
    for name in laptime.__all__:
        assert name == "__version__" or f"### `laptime.{name}`" in text
    for verb in ("run", "report", "serve", "predict", "data sync"):
        assert f"### `laptime {verb}`" in text


def test_what_is_said_of_a_run_is_what_a_run_has(tmp_path):
    a_finished_run(tmp_path / "one", ["conv1", "fc"])
    assert set(DOCUMENT) == set(read_document(tmp_path / "one"))
    assert set(SHOWN) == set(content(laptime.load(tmp_path / "one")))
