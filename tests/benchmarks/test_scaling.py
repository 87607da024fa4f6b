"""Published rows become configurations, constants are found again, and files of other rows are told apart."""

import csv
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from benchmarks.scaling.facts import FILES
from benchmarks.scaling.fitting import START, Fit
from benchmarks.scaling.judging import baselines, floors, from_two
from benchmarks.scaling.rows import Row, rows

from laptime.estimate.data_parallel import alone_from_time
from laptime.hardware import device

COLUMNS = [
    "source",
    "model",
    "framework",
    "device",
    "n_devices",
    "batch_per_device",
    "precision",
    "metric",
    "value",
    "unit",
    "note",
]


def line(gpus, value, *, note="", model="BERT", batch="8", where="NVIDIA DGX A100 (8x A100 80GB)"):
    return dict(zip(COLUMNS, ["readme", model, "PyTorch", where, gpus, batch, "TF32", "training_throughput",
                              value, "items/s", note], strict=True))  # fmt: skip


def read(folder, *lines):
    with open(folder / FILES[1], "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(lines)
    left = Counter()
    return list(rows(folder, FILES[1], left)), left


def row(gpus, step_s, millions, **known):
    facts = {
        "file": FILES[1], "network": "made up", "group": "nvidia/PyTorch/a100", "mixed": False, "kind": "ddp",
        "device": device("a100-sxm-80gb"), "accumulate": 1, "slowdown": 1.0, "ragged": False, "decoded": 0.0,
        "twice": None,
    }  # fmt: skip
    return Row(gpus=gpus, alone=alone_from_time(step_s, millions * 1e6), **{**facts, **known})


def made_up(constants):
    found = [
        row(gpus, step_s, millions, kind=kind, ragged=ragged, accumulate=accumulate)
        for gpus in (2, 4, 8)
        for step_s in (0.03, 0.1, 0.4)
        for millions in (5, 100, 400)
        for kind in ("ddp", "horovod")
        for ragged, accumulate in ((False, 1), (True, 1), (False, 16))
    ]
    return [replace(one, slowdown=1 / one.scaled(constants).efficiency) for one in found]


def test_a_row_is_set_beside_the_one_gpu_row_of_its_configuration(tmp_path):
    (two, eight), left = read(tmp_path, line(1, 100), line(2, 160), line(8, 400), line(16, 900))
    assert (two.slowdown, eight.slowdown) == (pytest.approx(200 / 160), pytest.approx(2.0))
    assert eight.twice == two.slowdown
    assert eight.device.name == "a100-sxm-80gb"
    assert not left


def test_rows_without_a_fair_partner_are_left_out_and_counted(tmp_path):
    suspect = line(8, 400, note="SUSPECT: unit")
    found, left = read(
        tmp_path, line(1, 100), suspect, line(8, 400, batch="16"), line(8, 1, model="x/MoFlow")
    )
    assert not found
    assert sum(left.values()) == 3


def test_a_later_file_of_the_same_table_takes_its_own_one_gpu_row(tmp_path):
    found, _ = read(tmp_path, line(1, 100), line(8, 400), line(1, 50), line(8, 400))
    assert [one.slowdown for one in found] == [pytest.approx(2.0), pytest.approx(1.0)]


def test_all_rows_at_once_give_what_each_gives_alone():
    constants = {**START, "link_share": 0.3, "contention": 0.4, "spread": 0.01, "raggedness": 0.05}
    found = made_up(constants)
    each = [1 / one.scaled(constants).efficiency for one in found]
    assert Fit(found).slowdowns(constants) == pytest.approx(np.array(each))


def test_planted_constants_are_found_again():
    planted = {**START, "link_share": 0.25, "contention": 0.3, "ddp_sync_s": 0.002, "horovod_sync_s": 0.006,
               "spread": 0.01, "raggedness": 0.08}  # fmt: skip
    fit = Fit(made_up(planted))
    found = fit.constants(np.ones(len(fit.rows), bool))
    assert fit.loss(found, np.ones(len(fit.rows), bool)) < 0.004


def test_a_fold_is_predicted_without_its_own_rows():
    slow = [replace(one, group="slow/PyTorch/a100", slowdown=3.0) for one in made_up(START)]
    fit = Fit([*made_up(START), *slow])
    errors = fit.held_out(lambda one: one.group)
    assert np.abs(errors[: len(slow)]).min() > 0.1  # fitted to the slow ones
    assert errors[len(slow) :].min() > 1.0  # and these to the others


def test_two_runs_give_a_line_and_no_run_gives_a_straight_speed_up():
    one = row(8, 0.1, 100, slowdown=1.35, twice=1.2)
    assert from_two(one) == pytest.approx(0.0)
    assert baselines([one])["linear speed-up"] == pytest.approx([0.35])


def test_the_floor_is_what_equal_configurations_disagree_by():
    pair = [row(8, 0.1, 100, slowdown=1.0), row(8, 0.105, 100, slowdown=1.1), row(8, 0.5, 100, slowdown=3.0)]
    pair += [row(8, 0.1, 100, slowdown=value, accumulate=64) for value in (0.9, 1.0)]
    found = floors(pair)
    assert len(found["one configuration on two nodes"]) == 2
    assert np.abs(found["one configuration on two nodes"]).max() == pytest.approx(0.1, abs=0.012)
