import math
import re

import pytest
from tests.runs.samples import a_finished_run

from laptime.errors import DataError
from laptime.model import Stage
from laptime.runs import load
from laptime.runs.importers import collect


@pytest.fixture
def steps_of(tmp_path):
    """The steps collected from a text."""

    def read(text, **options):
        path = tmp_path / "train.log"
        path.write_text(text)
        return list(collect(path, tmp_path / "run", **options).steps)

    return read


LINES = {
    "2018-05-01 12:00:00.5: step 10, loss = 4.67 (512.0 examples/sec; 0.125 sec/batch)": {
        "step": 10,
        "loss": 4.67,
        "wall_s": 0.125,
        "samples": 64,
    },
    "step 10 lr=0.1 loss=0.5 grad=3 0.123 sec/batch": {"step": 10, "loss": 0.5, "wall_s": 0.123},
    "iteration 7: loss 2.31, top1 accuracy 0.25, top5 accuracy 0.5, 250 ms/step": {
        "step": 7,
        "loss": 2.31,
        "top1": 0.25,
        "topn": 0.5,
        "wall_s": 0.25,
    },
    "Iteration: 3 Loss: 1.5 Top-1: 12.5 % Top-n: 50 % time: 0.2 s": {
        "step": 3,
        "loss": 1.5,
        "top1": 0.125,
        "topn": 0.5,
        "wall_s": 0.2,
    },
    " 10/100 [==>...........................] - 2s 20ms/step - loss: 1.2000 - accuracy: 0.5000": {
        "step": 10,
        "loss": 1.2,
        "top1": 0.5,
        "wall_s": 0.02,
    },
    "100/100 ━━━━━━━━━━━━━━━━━━━━ 2s 20ms/step - accuracy: 0.5 - loss: 1.2": {"step": 100, "wall_s": 0.02},
    "Epoch: [3][ 20/100]\tTime  0.150 ( 0.160)\tLoss 3.2e-01 (3.3e-01)\tAcc@1  87.50 ( 88.00)": {
        "epoch": 3,
        "step": 20,
        "loss": 0.32,
        "top1": 0.875,
        "wall_s": 0.15,
    },
    "{'loss': 0.25, 'step': 4, 'time': 0.5}": {"step": 4, "loss": 0.25, "wall_s": 0.5},
    '{"step": 4, "loss": 0.25, "time_ms": 500}': {"step": 4, "loss": 0.25, "wall_s": 0.5},
    "step 5: loss = nan, 4.0 it/s": {"step": 5, "wall_s": 0.25},
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_a_step(steps_of, line):
    (step,) = steps_of(f"starting up\n{line}\ndone in 3 hours\n")
    for name, value in LINES[line].items():
        assert getattr(step, name) == pytest.approx(value), name
    assert step.stage is Stage.TRAIN
    assert step.unexplained_s == step.wall_s


def test_validation_is_told_from_training(steps_of):
    text = """step 0, loss = 2.5, 0.1 sec/batch
step 1, loss = 2.0, 0.1 sec/batch
validation step 0, loss = 2.2, top1 = 0.3, 0.05 sec/batch
eval step 1, loss = 2.1, 0.05 sec/batch
"""
    steps = steps_of(text)
    assert [step.stage for step in steps] == [Stage.TRAIN] * 2 + [Stage.VALIDATION] * 2
    assert steps[2].top1 == 0.3


def test_a_keras_epoch_holds_training_and_validation(steps_of):
    text = (
        "Epoch 1/2\n\r 1/10 [>.....] - ETA: 1s - loss: 2.0\r10/10 [=====] - 1s 30ms/step - loss: 1.5 "
        "- accuracy: 0.4 - val_loss: 1.7 - val_accuracy: 0.35\n"
    )
    steps = steps_of(text)
    assert [(step.stage, step.loss) for step in steps] == [
        (Stage.TRAIN, 2.0),
        (Stage.TRAIN, 1.5),
        (Stage.VALIDATION, 1.7),
    ]
    assert steps[1].wall_s == pytest.approx(0.03)
    assert steps[2].top1 == pytest.approx(0.35)


def test_time_stamps_stand_in_where_no_line_says_its_time(steps_of):
    steps = steps_of(
        "2024-01-02 10:00:00,000 step 0 loss 3.0\n2024-01-02 10:00:00,250 step 1 loss 2.0\n"
        "2024-01-02 10:00:01,000 step 2 loss 1.0\n"
    )
    assert [step.wall_s for step in steps] == pytest.approx([0.0, 0.25, 0.75])


def test_lines_without_a_time_are_counted(tmp_path):
    path = tmp_path / "log.txt"
    path.write_text("step 1 loss 2\nstep 2 loss 1\n")
    assert any("2 of 2 lines say no time" in note for note in collect(path, tmp_path / "r").summary["notes"])


def test_a_csv_with_any_usual_header_is_read(steps_of):
    steps = steps_of("iteration,loss,accuracy,time_ms,val_loss\n1,2.5,0.1,20,\n2,2.0,0.2,30,2.2\n")
    assert [(step.step, step.stage) for step in steps] == [
        (1, Stage.TRAIN),
        (2, Stage.TRAIN),
        (2, Stage.VALIDATION),
    ]
    assert steps[1].wall_s == pytest.approx(0.03)


def test_our_own_iterations_come_back_as_they_were(tmp_path):
    run = load(a_finished_run(tmp_path / "one", ["conv", "fc"]))
    again = collect(tmp_path / "one" / "csv" / "iterations.csv", tmp_path / "two")
    assert list(again.steps) == sorted(run.steps, key=lambda step: step.start_s)


def test_a_pattern_reads_other_logs(steps_of):
    (step, held_out) = steps_of(
        "T|7|0.5|120\nnoise\nV|8|0.75|60\n",
        pattern=r"^(?P<stage>T|V)\|(?P<step>\d+)\|(?P<loss>[\d.]+)\|(?P<ms>\d+)",
    )
    assert (step.step, step.loss, step.wall_s) == (7, 0.5, pytest.approx(0.12))
    assert held_out.stage is Stage.VALIDATION


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("(", "no regular expression"),
        (r"(\d+)", "no named group"),
        (r"(?P<stpe>\d+)", "'stpe' that is not known"),
        (r"(?P<step>\d+) apples", "no line of"),
    ],
)
def test_a_pattern_that_cannot_work_says_what_to_change(steps_of, pattern, said):
    with pytest.raises(DataError, match=said) as caught:
        steps_of("step 1 loss 2\n", pattern=pattern)
    assert "\n" not in str(caught.value)


TRAINER = """
{'loss': 2.1, 'grad_norm': 1.5, 'learning_rate': 5e-05, 'epoch': 0.5}
 50%|█████  | 10/20 [00:01<00:01, 9.8it/s]{'loss': nan, 'grad_norm': inf, 'learning_rate': 4e-05, 'epoch': 1}
{'eval_loss': 1.9, 'eval_accuracy': 0.5, 'eval_runtime': 0.2, 'eval_samples_per_second': 90.0, 'epoch': 1.0}
{'train_runtime': 2.0, 'train_samples_per_second': 80.0, 'train_loss': 2.0, 'epoch': 1.0}
"""


@pytest.mark.parametrize("quoted", [False, True])
def test_what_hugging_faces_trainer_prints_is_a_log(steps_of, quoted):
    text = re.sub(r": ([\w.-]+)", r": '\1'", TRAINER) if quoted else TRAINER
    first, second, held = steps_of(text)
    assert (first.stage, first.loss, first.epoch) == (Stage.TRAIN, 2.1, 0)
    assert math.isnan(second.loss)
    assert second.epoch == 1
    assert (held.stage, held.loss, held.top1) == (Stage.VALIDATION, 1.9, 0.5)
