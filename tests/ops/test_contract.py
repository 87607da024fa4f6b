"""What holds for every operation kind, on operations that the kind's own microbenchmark draws."""

import math
from dataclasses import replace
from functools import cache

import pytest
import torch

from laptime.capture.op_reader import NO_KERNEL
from laptime.estimate.calibration import kernel_work, work
from laptime.estimate.datasheet_transfer import GPU
from laptime.microbench import all_families
from laptime.microbench.random_sizes import Draw, Supply, TooLarge
from laptime.model import Memory, Operation, Phase, Workload
from laptime.ops.registry import OperationKind, kind_named, kind_of, kinds, operation_kind
from laptime.ops.rescaling import rescaled

KINDS = list(kinds().values())
TIMED = [kind for kind in KINDS if kind.microbenchmark]
FAMILIES = {family.name: family for family in all_families()}
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
every_timed_kind = pytest.mark.parametrize("kind", TIMED, ids=lambda kind: kind.name)


@cache
def drawn(name):
    """An operation that a model of this kind times, and a batch size that divides what follows the batch."""
    family, supply = FAMILIES[kind_named(name).microbenchmark], supply_of_small_tensors()
    for _ in range(500):
        try:
            with torch.no_grad():
                operations = [case.operation() for case in family.make(supply, torch.float32)]
        except TooLarge:
            continue
        for operation in operations:
            entry = kind_named(operation.kind)
            if entry.timed_as(operation).kind != name:
                continue
            if name == "optimizer" or entry.growth(operation, 2).sizes:
                return operation
    raise AssertionError(f"{family.name} draws nothing that is timed as {name}")


def supply_of_small_tensors():
    return Supply(torch.device("cpu"), draw=Draw(3), largest_s=0.0005, store_bytes=1 << 22)


def workload(operation, batch):
    memory = Memory(parameters=0, gradients=0, buffers=0, state=0, inputs=0, activations=0, peak=0)
    operations = (replace(operation, layer="one", alive=0),)
    return Workload(
        network="one operation", batch=batch, precision="fp32", mode="training", parameters=0, tensors=0,
        sample_bytes=0, layers=("one",), operations=operations, memory=memory,
    )  # fmt: skip


@every_kind
def test_names_are_claimed_once_and_launch_a_kernel(kind):
    assert kind.name in kinds()
    assert not kind.torch_names & NO_KERNEL
    for name in kind.torch_names:
        assert kind_of(name) is kind
    if kind.torch_names:
        with pytest.raises(ValueError, match="known already"):
            operation_kind(f"another {kind.name}", " ".join(kind.torch_names))(OperationKind)


@every_kind
def test_each_has_names_or_says_whose_operations_it_times(kind):
    read_otherwise = kind.name in ("optimizer", "other")
    assert bool(kind.torch_names) + bool(kind.variant_of) + read_otherwise == 1
    assert not kind.variant_of or kind_named(kind.variant_of).torch_names
    assert all(name in kinds() for name in kind.like)


@every_kind
def test_each_has_a_microbenchmark_or_a_reason_for_none(kind):
    assert bool(kind.microbenchmark) != bool(kind.no_microbenchmark)
    assert not kind.microbenchmark or kind.microbenchmark in FAMILIES


@every_timed_kind
def test_sizes_give_flops_and_finite_features(kind):
    operation = drawn(kind.name)
    assert operation.flops == kind_named(operation.kind).flops(operation.sizes) >= 0
    assert operation.read >= 0
    assert operation.written > 0
    assert operation.covered
    found = work(operation)
    assert found.kind == kind.name
    assert all(math.isfinite(value) for value in found.vector)
    assert found.serial >= 1
    assert {
        len(kernel_work(kind.name, dtype, operation.sizes, 8).vector) for dtype in ("float32", "bfloat16")
    } == {len(found.vector)}
    classes = {name.partition(",")[0] for name in GPU.bound} | {"fixed norm"}
    assert {
        kind_named(found.kind).transfer_class(operation.sizes, mode) for mode in ("training", "inference")
    } <= classes
    for kernel in kind_named(operation.kind).further_kernels(operation):
        assert kernel.kind in kinds()


@every_timed_kind
def test_the_same_batch_changes_nothing_and_twice_the_batch_doubles_what_grows(kind):
    operation = drawn(kind.name)
    asked = workload(operation, 2)
    assert rescaled(asked, 2) == asked
    (before,), (after,) = asked.operations, rescaled(asked, 4).operations
    growth = kind_named(operation.kind).growth(operation, 2)
    assert bool(growth.sizes) == (kind.name != "optimizer")
    if not growth.sizes:
        assert after == before
        return
    for name, size in before.sizes.items():
        assert after.sizes[name] == (2 * size if name in growth.sizes else size)
    assert after.flops == 2 * before.flops
    read, written = min(growth.fixed_read, before.read), min(growth.fixed_written, before.written)
    assert after.read - read == 2 * (before.read - read)
    assert after.written - written == 2 * (before.written - written)


def test_a_kind_that_only_another_laptime_knows_counts_with_its_bytes():
    strange = Operation(
        name="aten.strange", kind="strange", phase=Phase.FORWARD, layer="one", dtype="float32",
        sizes={"n": 8}, read=32, written=32,
    )  # fmt: skip
    found = work(strange)
    assert (found.kind, found.flops, found.bytes) == ("strange", 0, 64)
    assert rescaled(workload(strange, 4), 8).operations[0].moved == 128
