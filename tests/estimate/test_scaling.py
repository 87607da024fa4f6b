"""Several GPUs that agree on gradients: small cases by hand, and what must hold for any."""

from dataclasses import replace

import pytest

from laptime.errors import PredictionError
from laptime.estimate.data_parallel import (
    DDP,
    GATHERED,
    Alone,
    Gradient,
    Habits,
    alone_from_step,
    alone_from_time,
    ring_all_reduce_s,
    scale,
)
from laptime.estimate.op_times import PredictedOperation, TimedStep
from laptime.hardware import Device, device, link
from laptime.model import LOSS_LAYER, Operation, Phase

PCIE = Device(
    name="mine", title="mine", kind="gpu", memory_bandwidth_gbs=1000.0, host_link="pcie-4-x16"
)  # 31.5 GB/s, 5.7 µs a hop
BARE = Habits(link_share=1.0, sync_s=0.0, contention=0.0, spread=0.0, bucket_bytes=1.0)
HOP = 5.7e-6


def layers(*pairs, forward_s=1.0, update_s=0.0):
    backward = tuple(Gradient(seconds=seconds, bytes=size) for seconds, size in pairs)
    return Alone(forward_s=forward_s, backward=backward, update_s=update_s)


def test_a_ring_sends_twice_all_but_one_share_of_the_bytes_over_each_link():
    assert ring_all_reduce_s(8e9, 4, 1e9) == pytest.approx(12.0)
    assert ring_all_reduce_s(8e9, 2, 1e9, 0.5) == pytest.approx(8.0 + 2 * 0.5)
    assert ring_all_reduce_s(8e9, 1, 1e9, 0.5) == 0.0


def test_only_the_last_layers_gradients_are_exposed_where_the_rest_has_time():
    # Each bucket takes 1 s and two hops; the first is done before the second is ready, 2 s later.
    scaled = scale(layers((1.0, 31.5e9), (2.0, 31.5e9)), PCIE, 2, BARE)
    assert scaled.exposed_s == pytest.approx(1.0 + 2 * HOP)
    assert scaled.overlapped_s == pytest.approx(1.0 + 2 * HOP)
    assert scaled.step_s == pytest.approx(4.0 + 1.0 + 2 * HOP)
    assert scaled.efficiency == pytest.approx(4.0 / (5.0 + 2 * HOP))


def test_a_bucket_waits_for_the_one_before():
    # Ready after 1 and 2 s, 3 s each: 1 + 3 + 3 = 7 s, of which 5 come after the backward pass.
    scaled = scale(layers((1.0, 3 * 31.5e9), (1.0, 3 * 31.5e9)), PCIE, 2, BARE)
    assert scaled.exposed_s == pytest.approx(5.0 + 4 * HOP)
    assert scaled.overlapped_s == pytest.approx(1.0)


def test_without_overlap_all_communication_is_exposed():
    scaled = scale(layers((1.0, 31.5e9), (2.0, 31.5e9)), PCIE, 2, replace(BARE, overlaps=False))
    assert (scaled.exposed_s, scaled.overlapped_s) == (pytest.approx(2.0 + 4 * HOP), 0.0)


def test_small_gradients_share_a_bucket_and_its_hops():
    step = layers(*[(0.1, 10e6)] * 5)
    together = scale(step, PCIE, 2, replace(BARE, bucket_bytes=25e6))
    each = scale(step, PCIE, 2, BARE)
    assert each.communication_s - together.communication_s == pytest.approx(3 * 2 * HOP)  # 5 buckets, and 2
    assert together.exposed_s == pytest.approx(20e6 / 31.5e9 + 2 * HOP)  # 30 MB go before, 20 MB at the end


def test_a_parameter_server_gets_gradients_and_sends_parameters():
    scaled = scale(layers((1.0, 31.5e9)), PCIE, 8, replace(BARE, through="host"))
    assert scaled.communication_s == pytest.approx(2.0 + 2 * HOP)


def test_hidden_communication_slows_the_pass_that_hides_it():
    scaled = scale(layers((1.0, 31.5e9), (2.0, 31.5e9)), PCIE, 2, replace(BARE, contention=0.25))
    assert scaled.contention_s == pytest.approx(0.25 * (1.0 + 2 * HOP))


def test_all_wait_for_the_slowest_of_eight():
    scaled = scale(layers((2.0, 0.0)), PCIE, 8, replace(BARE, spread=0.1))
    assert scaled.waiting_s == pytest.approx(0.1 * 1.42 * 3.0, rel=0.02)  # 1.42: order statistics of eight
    assert scaled.step_s == pytest.approx(3.0 + scaled.waiting_s)


def test_accumulated_batches_share_one_all_reduce():
    once, often = (scale(layers((2.0, 31.5e9)), PCIE, 2, BARE, accumulate=count) for count in (1, 4))
    assert often.alone_s == 4 * once.alone_s
    assert often.communication_s == once.communication_s


@pytest.mark.parametrize(("what", "grows"), [("raggedness", 2.0), ("spread", 4.0)])
def test_ragged_batches_even_out_over_an_update_and_slow_gpus_do_not(what, grows):
    habits = replace(BARE, **{what: 0.1})
    once, often = (scale(layers((2.0, 0.0)), PCIE, 2, habits, accumulate=count) for count in (1, 4))
    assert often.waiting_s == pytest.approx(grows * once.waiting_s)


def test_slow_gpus_and_ragged_batches_add_their_variances():
    habits = replace(BARE, spread=0.03, raggedness=0.04)
    both = scale(layers((2.0, 0.0)), PCIE, 8, habits)
    assert both.waiting_s == pytest.approx(
        scale(layers((2.0, 0.0)), PCIE, 8, replace(BARE, spread=0.05)).waiting_s
    )


def test_one_gpu_that_gathers_gets_the_gradients_of_all_others_in_turn():
    habits = replace(BARE, through="first", overlaps=False)
    two, four = (scale(layers((1.0, 31.5e9)), PCIE, gpus, habits).exposed_s for gpus in (2, 4))
    assert two == pytest.approx(2.0, rel=1e-3)
    assert four == pytest.approx(6.0, rel=1e-3)


def test_two_chips_of_a_board_share_its_link_to_the_host():
    through = replace(BARE, through="host")
    card = device("k80")
    single = replace(card, name="half of one")
    assert scale(layers((1.0, 1e9)), card, 4, through).communication_s == pytest.approx(
        2 * scale(layers((1.0, 1e9)), single, 4, through).communication_s, rel=1e-3
    )


def test_two_gpus_of_a_mesh_have_few_links_and_those_of_a_switch_all():
    step = layers((1.0, 15e9))
    mesh, switch = (scale(step, device(name), 2, BARE) for name in ("v100-sxm2-16gb", "v100-sxm3-32gb"))
    assert switch.exposed_s == pytest.approx(0.1, rel=1e-3)
    assert mesh.exposed_s == pytest.approx(0.3, rel=1e-3)


@pytest.mark.parametrize(
    "habits",
    [DDP, replace(DDP, through="host", link_share=1.0), GATHERED, replace(DDP, board=0.1, host_s=0.1)],
)
def test_one_gpu_changes_nothing(habits):
    step = layers((1.0, 1e9), update_s=0.5)
    scaled = scale(step, device("h200"), 1, habits)
    assert (scaled.step_s, scaled.efficiency, scaled.communication_s) == (step.step_s, 1.0, 0.0)


@pytest.mark.parametrize("gpus", [2, 3, 4, 8])
def test_more_bandwidth_never_slows(gpus):
    step = alone_from_time(0.1, 300e6)
    steps = [
        scale(step, PCIE, gpus, replace(DDP, link_share=share, contention=contention)).step_s
        for contention in (0.0, 0.5, 1.0)
        for share in (0.01, 0.03, 0.1, 0.3, 1.0)
    ]
    for at in (0, 5, 10):
        assert steps[at : at + 5] == sorted(steps[at : at + 5], reverse=True)


def test_more_gpus_never_raise_efficiency_and_the_parts_add_up():
    step = alone_from_time(0.2, 100e6)
    found = [scale(step, device("h200"), gpus) for gpus in range(1, 9)]
    efficiencies = [one.efficiency for one in found]
    assert efficiencies == sorted(efficiencies, reverse=True)
    for one in found:
        assert one.exposed_s + one.overlapped_s == pytest.approx(one.communication_s)


def test_a_time_and_a_count_of_parameters_make_a_step():
    step = alone_from_time(0.3, 1e6)
    assert step.step_s == pytest.approx(0.3)
    assert step.backward_s == pytest.approx(0.2)
    assert sum(each.bytes for each in step.backward) == pytest.approx(4e6)


def operation(phase, layer, span_s, **sizes):
    kind = "optimizer" if phase is Phase.UPDATE else "mm"
    made = Operation(name=kind, kind=kind, phase=phase, layer=layer, dtype="float32", sizes=sizes)
    return PredictedOperation(operation=made, device_s=span_s, span_s=span_s)


def test_a_predicted_step_gives_its_gradients_in_the_order_of_the_backward_pass():
    parts = (
        operation(Phase.FORWARD, "first", 1.0),
        operation(Phase.FORWARD, "last", 1.0),
        operation(Phase.FORWARD, LOSS_LAYER, 0.5),
        operation(Phase.BACKWARD, "", 0.25),
        operation(Phase.BACKWARD, "last", 2.0),
        operation(Phase.BACKWARD, "first", 3.0),
        operation(Phase.UPDATE, "first", 0.1, params=10),
        operation(Phase.UPDATE, "last", 0.2, params=1000),
    )
    step = alone_from_step(TimedStep(operations=parts, step_s=8.05, busy_s=8.05, host_s=0.0))
    assert step.forward_s == 2.5
    assert [(one.seconds, one.bytes) for one in step.backward if one.bytes] == [(2.25, 4000.0), (3.0, 40.0)]
    assert step.step_s == pytest.approx(8.05)


def test_gpus_without_a_link_get_one_line():
    with pytest.raises(PredictionError, match="add host_link or gpu_link"):
        scale(alone_from_time(0.1, 1e6), replace(PCIE, host_link=None), 2)


def test_the_links_used_here_are_those_of_the_catalog():
    assert (link("pcie-4-x16").bandwidth, link("pcie-4-x16").latency_s) == (31.5e9, pytest.approx(HOP))
