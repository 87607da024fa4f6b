"""Event files, read back by TensorBoard itself."""

import subprocess
import sys

import pytest
from tests.runs.samples import HOSTILE, a_finished_run, a_step, add_steps, start

from laptime.errors import MissingExtra
from laptime.runs import load, schema, write_tensorboard

multiplexer = pytest.importorskip(
    "tensorboard.backend.event_processing.plugin_event_multiplexer", reason="tensorboard is not installed"
)

# The page's Markdown comes through a library that TensorBoard carries along and that warns of itself.
pytestmark = pytest.mark.filterwarnings("ignore:html5lib's sanitizer is deprecated:DeprecationWarning")


def read(folder):
    """The runs that TensorBoard finds under a folder."""
    found = multiplexer.EventMultiplexer(tensor_size_guidance={"scalars": 0, "text": 0})
    found.AddRunsFromDirectory(str(folder))
    found.Reload()
    return found


def scalars(found, run, tag):
    return [(event.step, event.tensor_proto.float_val[0]) for event in found.Tensors(run, tag)]


def words(found, run, tag):
    """Text as TensorBoard's page shows it."""
    from tensorboard.plugin_util import markdown_to_safe_html

    (event,) = found.Tensors(run, tag)
    return markdown_to_safe_html(event.tensor_proto.string_val[0])


def test_training_and_validation_are_two_runs_with_the_same_tags(tmp_path):
    run = load(a_finished_run(tmp_path / "run", ["conv1", "fc"]))
    written = write_tensorboard(run)
    found = read(tmp_path / "run" / "tensorboard")
    assert set(found.Runs()) == {".", "train", "validation"}
    assert len(written) == 3
    assert scalars(found, "train", "loss") == [(n, pytest.approx(1 / (n + 1))) for n in range(8)]
    assert scalars(found, "validation", "loss") == [(0, 1.0)]
    assert scalars(found, "train", "layer/fc/backward") == [(n, pytest.approx(1)) for n in range(8)]
    began = [event.wall_time - run.created.timestamp() for event in found.Tensors("train", "step/ms")]
    assert began == pytest.approx([n * 0.1 for n in range(8)], abs=1e-6)


def test_names_are_tags_whatever_they_are(tmp_path):
    write_tensorboard(load(a_finished_run(tmp_path / "run", HOSTILE, steps=1)), tmp_path / "logs")
    tags = read(tmp_path / "logs").Runs()["run/train"]["tensors"]
    assert {f"layer/{name}/{phase}" for name in HOSTILE for phase in ("forward", "backward")} <= set(tags)


def test_the_books_and_the_configuration_are_tables(tmp_path):
    writer = start(
        tmp_path / "run", note="<script>a|b</script>\n*x*", optimizer={"lr": 0.1, "betas": [0.9, 1]}
    )
    add_steps(writer, range(4))
    writer.close("finished", {})
    write_tensorboard(load(tmp_path / "run"))
    found = read(tmp_path / "run" / "tensorboard")
    books = words(found, ".", "books")
    assert "<td>backward</td>\n<td>50.000 ±0%</td>" in books
    assert "<td>wall</td>" in books
    settings = words(found, ".", "configuration")
    assert "<td>optimizer.lr</td>\n<td>0.1</td>" in settings
    assert "<td>[0.9, 1]</td>" in settings
    assert "<td>&lt;script&gt;a|b&lt;/script&gt;\\n*x*</td>" in settings
    assert "<td>finished</td>" in words(found, ".", "run")


def test_settings_are_hyperparameters_with_their_types(tmp_path):
    from tensorboard.plugins.hparams import metadata

    writer = start(tmp_path / "run", batch=64, amp=True, optimizer={"name": "sgd"}, seed=None)
    writer.close("failed", {})
    write_tensorboard(load(tmp_path / "run"))
    found = read(tmp_path / "run" / "tensorboard")

    def content(tag):
        return found.SummaryMetadata(".", tag).plugin_data.content

    session = metadata.parse_session_start_info_plugin_data(content("_hparams_/session_start_info"))
    assert {name: getattr(value, value.WhichOneof("kind")) for name, value in session.hparams.items()} == {
        "batch": 64.0,
        "amp": True,
        "optimizer.name": "sgd",
        "seed": "null",
    }
    end = metadata.parse_session_end_info_plugin_data(content("_hparams_/session_end_info"))
    assert end.status == 2  # STATUS_FAILURE
    assert "no training steps" in words(found, ".", "books")
    assert set(found.Runs()) == {"."}


def test_nan_stays_nan(tmp_path):
    writer = start(tmp_path / "run")
    writer.append("steps", schema.steps.table([a_step(0, loss=float("nan")), a_step(1, loss=1e300)]))
    writer.close("failed", {})
    write_tensorboard(load(tmp_path / "run"))
    (first, one), (second, two) = scalars(read(tmp_path / "run"), "tensorboard/train", "loss")
    assert (first, second, one != one, two) == (0, 1, True, float("inf"))


def test_long_runs_are_thinned(tmp_path):
    writer = start(tmp_path / "run")
    add_steps(writer, range(1000))
    writer.close("finished", {})
    write_tensorboard(load(tmp_path / "run"), most=100)
    found = read(tmp_path / "run" / "tensorboard")
    assert len(found.Tensors("train", "step/ms")) == 100
    assert scalars(found, "train", "loss")[-1][0] == 999


def test_other_ranks_have_folders_of_their_own(tmp_path):
    for writer in [start(tmp_path / "run", rank=rank) for rank in (0, 1)]:
        add_steps(writer, range(2))
        writer.close("finished", {})
    write_tensorboard(load(tmp_path / "run"))
    runs = read(tmp_path / "run" / "tensorboard").Runs()
    assert set(runs) == {".", "train", "train rank 1"}
    assert "loss" not in runs["train rank 1"]["tensors"]
    assert "step/ms" in runs["train rank 1"]["tensors"]


def test_exporting_again_replaces_and_another_run_of_the_name_gets_its_own_folder(tmp_path):
    first = load(a_finished_run(tmp_path / "a" / "run", ["conv1"]))
    second = load(a_finished_run(tmp_path / "b" / "run", ["conv1"]))
    assert write_tensorboard(first, tmp_path / "logs") == write_tensorboard(first, tmp_path / "logs")
    (about, *_) = write_tensorboard(second, tmp_path / "logs")
    assert about.parent == tmp_path / "logs" / f"run-{second.id}"
    assert len(list((tmp_path / "logs").rglob("*tfevents*"))) == 6


def test_without_tensorboard_the_extra_is_named(tmp_path, monkeypatch):
    run = load(a_finished_run(tmp_path / "run", ["conv1"]))
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(MissingExtra, match=r"tensorboard .*laptime\[export\]"):
        write_tensorboard(run)


def test_neither_torch_nor_tensorflow_is_imported(tmp_path):
    path = a_finished_run(tmp_path / "run", ["conv1"], steps=1)
    script = (
        "import sys; sys.modules['tensorflow'] = sys.modules['torch'] = None\n"
        "from laptime.runs import load, write_tensorboard\n"
        f"print(len(write_tensorboard(load({str(path)!r}))))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "3\n"
