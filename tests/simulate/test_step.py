"""Steps of plans against closed forms: bubbles of pipelines, buckets of gradients, shards."""

from dataclasses import dataclass

import pytest

from laptime.errors import HardwareError, PlanError
from laptime.hardware.cluster import Cluster
from laptime.model.plan import SCHEDULES, Plan
from laptime.simulate.fabric import Fabric, LinkHabits
from laptime.simulate.schedules import ORDERS, Pass
from laptime.simulate.step import play
from laptime.simulate.work import LayerWork, RankWork

QUIET = LinkHabits(sync_s=0.0, contention=0.0)


@dataclass(frozen=True, kw_only=True)
class Links(Fabric):
    """Every exchange takes as many seconds for each byte; messages between stages take none."""

    s_per_byte: float = 0.0

    def seconds(self, kind, size, group, *, beside=False):
        return 0.0 if kind == "send" or group.ranks == 1 else self.s_per_byte * size


def fabric(devices: int = 64, s_per_byte: float = 0.0, habits: LinkHabits = QUIET) -> Links:
    cluster = Cluster(
        name="test", title="test", device="h200", nodes=1, devices_per_node=devices, inside="pcie-3-x16"
    )
    return Links(cluster=cluster, habits=habits, s_per_byte=s_per_byte)


def work(layers: int, micro: int = 1, *, forward: float = 1.0, backward: float = 2.0, parameters: int = 0):
    return RankWork(
        layers=tuple(
            LayerWork(
                name=f"block.{place}.linear",
                forward_s=forward,
                backward_s=backward,
                update_s=0.0,
                parameters=parameters,
                output_bytes=8.0,
                kept_bytes=16.0,
            )
            for place in range(layers)
        ),
        host_s=0.0,
        batch=1,
        micro_batches=micro,
        interval=0.1,
    )


def pipeline(stages: int, micro: int, schedule: str, chunks: int = 1, **times):
    plan = Plan(strategy="model", stages=stages, micro_batches=micro, schedule=schedule, chunks=chunks)
    return play(work(stages * chunks, micro, **times), plan, fabric())


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "micro"), [(2, 2), (2, 8), (4, 4), (4, 16), (8, 32), (3, 7)])
def test_the_bubble_of_a_pipeline_is_its_depth_less_one_micro_batch(schedule, stages, micro):
    step = pipeline(stages, micro, schedule)
    assert step.step_s == pytest.approx((micro + stages - 1) * 3.0)
    assert step.bubble_share == pytest.approx((stages - 1) / (micro + stages - 1))


@pytest.mark.parametrize(("stages", "micro", "chunks"), [(2, 4, 2), (4, 8, 2), (4, 16, 4), (8, 16, 2)])
def test_interleaving_divides_the_bubble_by_the_chunks(stages, micro, chunks):
    step = pipeline(stages, micro, "interleaved", chunks)
    assert step.step_s == pytest.approx(micro * chunks * 3.0 + (stages - 1) * 3.0)  # chunks of 3 s each


@pytest.mark.parametrize(("stages", "micro"), [(2, 4), (4, 8), (4, 16), (8, 32)])
def test_a_zero_bubble_schedule_leaves_a_third_of_the_bubble(stages, micro):
    # ZB-H1: (p - 1)(F + B - W), here with one second each (Qi et al. 2023).
    assert pipeline(stages, micro, "zero_bubble").step_s == pytest.approx(micro * 3.0 + (stages - 1) * 1.0)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_takes_every_pass_once_and_forward_before_backward(schedule):
    stages, micro, chunks = 4, 8, 2 if schedule == "interleaved" else 1
    for rank in range(stages):
        order = ORDERS[schedule](rank, stages, micro, chunks)
        passes = 3 if schedule == "zero_bubble" else 2
        assert len(set(order)) == len(order) == passes * micro * chunks
        for action in order:
            if action.kind is not Pass.FORWARD:
                forward = action._replace(kind=Pass.FORWARD)
                assert order.index(forward) < order.index(action)


def test_1f1b_holds_as_many_micro_batches_as_stages_follow():
    for rank in range(4):
        held = most = 0
        for action in ORDERS["1f1b"](rank, 4, 16, 1):
            held += 1 if action.kind is Pass.FORWARD else -1
            most = max(most, held)
        assert most == 4 - rank


def test_spans_of_a_rank_follow_each_other_and_fill_the_step():
    step = pipeline(4, 8, "1f1b")
    for rank in step.ranks:
        at = 0.0
        for span in rank.spans:
            assert span.start_s == pytest.approx(at)
            at = span.end_s
        assert at == pytest.approx(step.step_s)
        assert sum(rank.accounts().values()) == pytest.approx(step.step_s)


def test_fill_grows_towards_the_last_stage_and_drain_towards_the_first():
    ranks = pipeline(4, 8, "1f1b").ranks
    assert [rank.bubbles()["fill"] for rank in ranks] == pytest.approx([0.0, 3.0, 6.0, 9.0])
    assert [sum(rank.bubbles().values()) for rank in ranks] == pytest.approx([9.0] * 4)
    assert ranks[0].bubbles()["drain"] > ranks[2].bubbles()["drain"]


def test_gradients_that_fit_beside_the_backward_pass_are_not_exposed():
    layers = work(10, parameters=26 * 2**20 // 4)
    size = layers.layers[0].parameters * 4
    played = play(layers, Plan(data=8), fabric(s_per_byte=1.0 / size))
    # A bucket a layer, 1 s each beside layers of 2 s: only the first layer's is exposed.
    assert played.step_s == pytest.approx(10 * 3.0 + 1.0)
    assert played.exposed_s == pytest.approx(1.0)


def test_gradients_on_a_slow_link_are_exposed_but_for_the_backward_pass():
    layers = work(10, parameters=26 * 2**20 // 4)
    size = layers.layers[0].parameters * 4
    played = play(layers, Plan(data=8), fabric(s_per_byte=5.0 / size))
    assert played.step_s == pytest.approx(10.0 + 2.0 + 50.0)


def test_hidden_communication_slows_the_backward_pass_down():
    layers = work(10, parameters=26 * 2**20 // 4)
    size = layers.layers[0].parameters * 4
    habits = LinkHabits(sync_s=0.5, contention=0.5)
    played = play(layers, Plan(data=8), fabric(s_per_byte=1.0 / size, habits=habits))
    assert played.step_s == pytest.approx(30.0 + 1.0 + 0.5 + 0.5 * 9.0)


def test_sharded_parameters_are_gathered_twice_and_scattered_once():
    plan = Plan(strategy="sharded", data=4, shards=4)
    layers = work(6, parameters=1000)
    played = play(layers, plan, fabric(s_per_byte=1e-6))
    kinds = [each.kind for each in played.ranks[0].transfers]
    assert kinds.count("all_gather") == 12
    assert kinds.count("reduce_scatter") == 6
    # Gathers after the first are beside a layer.
    assert played.exposed_s < 4 * 1000 * 4 * 1e-6


def test_recomputing_adds_a_forward_pass():
    plain = play(work(4), Plan(), fabric())
    again = play(work(4), Plan(recompute=True), fabric())
    assert again.step_s - plain.step_s == pytest.approx(4.0)


def test_more_stages_than_layers_are_refused():
    with pytest.raises(PlanError, match="give at most stages=3"):
        play(work(3), Plan(strategy="model", stages=4, micro_batches=4), fabric())


def test_more_workers_than_devices_are_refused():
    with pytest.raises(HardwareError, match="give nodes=9"):
        play(work(3), Plan(data=65), fabric(devices=8))
