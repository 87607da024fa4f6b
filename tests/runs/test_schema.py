import dataclasses
import math
from types import NoneType
from typing import get_args, get_type_hints

import numpy as np
import pyarrow as pa
import pytest
from tests.runs.samples import HOSTILE, a_kernel, a_layer_time, a_step, start

from laptime.errors import DamagedRun, NewerSchema
from laptime.model import KernelTime, LayerTime, Phase, Step
from laptime.runs import TABLES, from_columns, load, schema

CONTRACT = {
    "steps": (
        "stage attempt step optimizer_step epoch rank device start_s wall_s "
        "data_wait_s copy_s forward_s loss_s backward_s update_s communication_s idle_s host_s instrument_s "
        "unexplained_s samples loss top1 topn bubble_fill_s bubble_drain_s bubble_imbalance_s staleness "
        "instrumented"
    ),
    "layers": "stage attempt step rank layer phase start_s seconds calls how busy_s idle_s memory_bytes",
    "kernels": "stage attempt step rank layer phase kind name stream start_s seconds",
}


@pytest.mark.parametrize("name", CONTRACT)
def test_the_columns_are_those_of_the_contract_in_its_order(name):
    assert TABLES[name].arrow.names == CONTRACT[name].split()


@pytest.mark.parametrize(("name", "value"), [("steps", Step), ("layers", LayerTime), ("kernels", KernelTime)])
def test_every_field_of_a_value_is_a_column_and_null_where_it_may_be_none(name, value):
    hints = get_type_hints(value)
    assert [field.name for field in dataclasses.fields(value)] == TABLES[name].arrow.names
    for column, hint in hints.items():
        assert TABLES[name].arrow.field(column).nullable == (NoneType in get_args(hint))


def test_values_come_back_as_they_were():
    steps = [a_step(0), a_step(1, idle_s=0.0, loss=None, samples=None), a_step(2, top1=0.5, device="cuda:0")]
    assert list(schema.steps.values(schema.steps.table(steps))) == steps
    layers = [a_layer_time(3, name, memory_bytes=2**40, busy_s=0.001, idle_s=0.0) for name in HOSTILE]
    assert list(schema.layers.values(schema.layers.table(layers))) == layers
    kernels = [a_kernel(3, name, name=name, stream=2**50) for name in HOSTILE]
    assert list(schema.kernels.values(schema.kernels.table(kernels))) == kernels


def test_a_loss_that_is_not_a_number_stays_one():
    (step,) = schema.steps.values(schema.steps.table([a_step(0, loss=math.nan)]))
    assert step.loss is not None
    assert math.isnan(step.loss)


def test_an_all_null_first_part_does_not_change_types(tmp_path):
    writer = start(tmp_path / "run")
    writer.append("steps", schema.steps.table([a_step(0, loss=None, samples=None)]))
    writer.append("layers", schema.layers.table([a_layer_time(0, "conv")]))
    writer.flush()
    writer.append("steps", schema.steps.table([a_step(1, idle_s=0.0, loss=0.5, top1=0.25, topn=0.5)]))
    writer.append(
        "layers", schema.layers.table([a_layer_time(1, "conv", busy_s=0.1, idle_s=0.2, memory_bytes=3)])
    )
    writer.flush()
    running = load(tmp_path / "run")
    assert running.steps.table.schema.equals(schema.steps.arrow)
    assert running.layer_table.schema.equals(schema.layers.arrow)
    assert running.kernel_table.schema.equals(schema.kernels.arrow)
    writer.close("finished", {})
    closed = load(tmp_path / "run")
    assert closed.steps.table.equals(running.steps.table)
    assert closed.layer_table["memory_bytes"].to_pylist() == [None, 3]


def test_columns_may_be_arrays_dictionaries_lists_and_single_values():
    names = ["conv", "fc"]
    table = from_columns(
        "layers",
        {
            "step": np.repeat(np.arange(2), 2),
            "layer": pa.DictionaryArray.from_arrays(np.array([0, 1, 0, 1], dtype=np.int32), names),
            "phase": Phase.BACKWARD,
            "start_s": np.zeros(4, dtype=np.float32),
            "seconds": [0.1, 0.2, 0.3, 0.4],
            "rank": np.full(4, 3, dtype=np.int64),
            "idle_s": np.array([np.nan, 0.5, np.nan, 0.0]),
        },
    )
    assert table.schema.equals(schema.layers.arrow)
    assert table["layer"].to_pylist() == ["conv", "fc", "conv", "fc"]
    assert table["idle_s"].to_pylist() == [None, 0.5, None, 0.0]
    assert table["rank"].to_pylist() == [3] * 4
    assert set(table["how"].to_pylist()) == {"measured"}
    assert table["memory_bytes"].null_count == 4


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        ({"step": [1], "layer": ["a"], "phase": "forward", "start_s": 0.0}, "layers needs a column seconds"),
        ({"stepp": [1]}, "layers has no column stepp"),
        (
            {"step": [1, 2], "layer": ["a"], "phase": "forward", "start_s": 0.0, "seconds": 0.0},
            "layers: layer is not 2 rows long",
        ),
        (
            {"step": [1], "layer": [None], "phase": "forward", "start_s": 0.0, "seconds": 0.0},
            "layer has 1 missing values and may have none",
        ),
    ],
)
def test_wrong_columns_are_refused_by_name(columns, line):
    with pytest.raises(ValueError, match=line):
        from_columns("layers", columns)


def test_a_newer_schema_is_refused_and_the_current_one_taken_as_it_is():
    with pytest.raises(
        NewerSchema, match=r"runs/x was written by schema 7, this laptime reads up to 2; upgrade"
    ):
        schema.upgrade({"schema_version": 7}, where="runs/x")
    document = {"schema_version": schema.SCHEMA_VERSION, "id": "x"}
    assert schema.upgrade(document, where="runs/x") == document


@pytest.mark.parametrize("version", [None, "1", 0, -3, True, 1.5])
def test_a_version_that_is_no_version_is_damage(version):
    with pytest.raises(DamagedRun, match="schema_version"):
        schema.upgrade({"schema_version": version}, where="runs/x")


def test_an_older_schema_is_brought_up_step_by_step(monkeypatch):
    monkeypatch.setattr(schema, "SCHEMA_VERSION", 3)
    monkeypatch.setattr(
        schema,
        "UPGRADES",
        {1: lambda d: {**d, "schema_version": 2, "two": True}, 2: lambda d: {**d, "schema_version": 3}},
    )
    assert schema.upgrade({"schema_version": 1}, where="x") == {"schema_version": 3, "two": True}
