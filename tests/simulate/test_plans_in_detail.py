"""What each degree of a plan changes: bytes that move, memory that is held, who waits for whom."""

from dataclasses import replace

import pytest

import laptime
from laptime import hardware
from laptime.errors import PlanError
from laptime.hardware.cluster import Cluster
from laptime.model.plan import Plan
from laptime.simulate.exchange_order import ServerLink, WorkerPace
from laptime.simulate.exchange_order import play as play_exchanges
from laptime.simulate.fabric import Fabric, Group, LinkHabits, groups_of
from laptime.simulate.memory import memory_of, put_off
from laptime.simulate.step import play
from laptime.simulate.training import TrainingRun, simulate
from laptime.simulate.work import Experts, LayerWork, RankWork, cut

QUIET = LinkHabits(sync_s=0.0, contention=0.0, between=1.0, inside_alone=1.0, inside_beside=1.0)
MIB = 2**20


@pytest.fixture(scope="module")
def gpt2():
    return laptime.workload("gpt2", batch=8, precision="bf16")


@pytest.fixture(scope="module")
def cluster():
    return hardware.cluster("aws-p5", nodes=4)


def a_layer(name, *, seconds=1.0, parameters=0, output=0.0, kept=0.0, experts=Experts.NONE):
    return LayerWork(
        name=name,
        forward_s=seconds,
        backward_s=2 * seconds,
        update_s=0.0,
        parameters=parameters,
        output_bytes=output,
        kept_bytes=kept,
        experts=experts,
    )


def work_of(*layers, micro_batches=1):
    return RankWork(layers=layers, host_s=0.0, batch=1, micro_batches=micro_batches, interval=0.1)


def nodes(count, *, per_node=8, wiring="switch", device="h100-sxm", inside="nvlink-4"):
    return Cluster(
        name="test",
        title="test",
        device=device,
        nodes=count,
        devices_per_node=per_node,
        inside=inside,
        wiring=wiring,
        between="infiniband-ndr" if count > 1 else None,
    )


# -- pipelines -----------------------------------------------------------------------------------------------


def test_blocks_are_not_cut_where_there_are_enough_of_them():
    layers = [a_layer(f"h.{block}.{part}") for block in range(6) for part in ("a", "b", "c")]
    parts = cut(layers, 4)
    blocks = [{layer.block for layer in part} for part in parts]
    assert sum(map(len, blocks)) == 6
    assert [len(cut(layers, 9)[place]) for place in range(9)] == [2] * 9  # more stages than blocks


@pytest.mark.parametrize("feature", [1, 4])
def test_ranks_that_split_features_send_their_part_to_the_next_stage(feature):
    work = work_of(a_layer("h.0", output=80e6), a_layer("h.1", output=80e6), micro_batches=2)
    plan = Plan(strategy="hybrid", stages=2, feature=feature, micro_batches=2, sequence=feature > 1)
    played = play(work, plan, Fabric(cluster=nodes(1), habits=QUIET))
    sent = [each.bytes for each in played.ranks[0].transfers if each.kind == "send"]
    assert sent == [80e6 / feature] * 2


def test_gradients_of_weights_that_are_put_off_hold_what_was_computed_again(gpt2, cluster):
    plans = [
        Plan.of(f"hybrid,stages=4,micro_batches=8,recompute,schedule={name}", workers=4)
        for name in ("1f1b", "zero_bubble")
    ]
    assert [put_off(3, plan) for plan in plans] == [0, 4]
    usual, late = (simulate(gpt2, cluster, plan, batch=8).memory for plan in plans)
    assert late.activations > usual.activations


# -- shards --------------------------------------------------------------------------------------------------


def test_a_sharded_plan_without_a_number_of_workers_is_sharded_too():
    assert Plan.of("sharded,data=8").shards == 8
    assert Plan.of("sharded,data=8,shards=4").shards == 4


def test_waiting_for_parameters_does_not_slow_the_backward_pass_down():
    # Gathers take far longer than layers: all of them are waited for, and nothing is hidden.
    layers = [a_layer(f"h.{place}", seconds=1e-6, parameters=25 * MIB) for place in range(8)]
    plan = Plan(strategy="sharded", data=16, shards=16)
    fabric = Fabric(cluster=nodes(2), habits=replace(QUIET, contention=0.5))
    quiet = Fabric(cluster=nodes(2), habits=QUIET)
    slow, fast = (play(work_of(*layers), plan, each).step_s for each in (fabric, quiet))
    assert slow < 1.3 * fast


# -- experts -------------------------------------------------------------------------------------------------


def experts_of(block, output):
    return (
        a_layer(f"h.{block}.gate", parameters=1000),
        a_layer(
            f"h.{block}.experts.up", parameters=8000, experts=Experts.HOLDS | Experts.FIRST, output=output
        ),
        a_layer(
            f"h.{block}.experts.down", parameters=8000, experts=Experts.HOLDS | Experts.LAST, output=output
        ),
    )


def test_samples_go_to_their_experts_and_back_once_in_each_direction():
    work = work_of(*experts_of(0, 8e6), *experts_of(1, 8e6))
    played = play(work, Plan(data=8, experts=8), Fabric(cluster=nodes(1), habits=QUIET))
    moved = [each for each in played.ranks[0].transfers if each.kind == "all_to_all"]
    assert [each.bytes for each in moved] == [8e6] * 8  # 2 blocks × 2 ways × forward and backward
    averaged = [each.bytes for each in played.ranks[0].transfers if each.kind == "all_reduce"]
    assert sum(averaged) == 2 * 1000 * 4  # each rank has experts that no other has


def test_experts_are_divided_among_their_ranks(cluster):
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(64, 64)
            self.experts = nn.ModuleList([nn.Linear(64, 256), nn.Linear(256, 64)])

        def forward(self, x):
            x = self.gate(x)
            for expert in self.experts:
                x = expert(x)
            return x

    with torch.device("meta"):
        network = nn.Sequential(Block(), Block())
        read = laptime.workload(network, example=torch.empty(4, 64))
    whole, divided = (
        simulate(read, cluster, Plan(data=8, experts=experts)).memory.parameters for experts in (1, 8)
    )
    experts = 4 * 2 * (64 * 256 + 256 + 256 * 64 + 64)
    assert whole - divided == pytest.approx(experts * 7 / 8, rel=0.01)


# -- local, asynchronous -------------------------------------------------------------------------------------


def test_groups_of_local_average_gradients_within(gpt2, cluster):
    alone, grouped = (
        simulate(gpt2, cluster, Plan.of(text, workers=32), batch=8) for text in ("local", "local,groups=4")
    )
    assert not alone.step.ranks[0].transfers
    assert {each.ranks for each in grouped.step.ranks[0].transfers} == {8}


def test_jitter_evens_out_between_two_averages_of_local(gpt2, cluster):
    often, seldom = (
        simulate(
            gpt2,
            cluster,
            Plan.of(f"local,average_every={every}", workers=32),
            batch=8,
            run=TrainingRun(steps=400, jitter=0.1),
        ).waiting_s
        for every in (1, 100)
    )
    assert seldom < 0.3 * often


@pytest.mark.parametrize("text", ["asynchronous,servers=8", "mixed,groups=4,servers=8"])
def test_slow_nodes_are_slow_with_parameter_servers_too(gpt2, cluster, text):
    slow = replace(cluster, slow_share=1.0, slowdown=2.0)
    plan = Plan.of(text, workers=32)
    equal, late = (simulate(gpt2, each, plan, batch=8).exchanges.seconds for each in (cluster, slow))
    assert late > 1.5 * equal


def test_workers_of_a_node_share_its_link():
    link = ServerLink(push_s=0.01, pull_s=0.01, apply_s=0.0, servers=10, worker_push_s=0.5, worker_pull_s=0.5)
    apart, together = (
        play_exchanges(
            [WorkerPace(step_s=0.1, link=number) for number in links],
            link,
            updates=50,
            staleness=None,
            seed=0,
        ).seconds
        for links in ((0, 1, 2, 3), (0, 0, 0, 0))
    )
    assert apart == pytest.approx(50 * 1.1)
    assert together == pytest.approx(50 * 4 * 0.5, rel=0.05)  # sending and getting at the same time


@pytest.mark.parametrize("degree", ["stages", "feature", "shards", "experts"])
@pytest.mark.parametrize("strategy", ["local", "asynchronous", "mixed"])
def test_what_replicates_the_network_cannot_divide_it(strategy, degree):
    with pytest.raises(PlanError, match=f"leave out {degree}"):
        Plan(strategy=strategy, data=8, **{degree: 2})


# -- links ---------------------------------------------------------------------------------------------------


def test_two_devices_of_a_mesh_reach_part_of_their_links():
    whole = Fabric(cluster=nodes(1, device="v100-sxm2-16gb", inside="nvlink-2"), habits=QUIET)
    mesh = Fabric(cluster=replace(whole.cluster, wiring="mesh"), habits=QUIET)
    two, eight = Group(ranks=2, per_node=2), Group(ranks=8, per_node=8)
    assert mesh.seconds("all_reduce", 1e9, two) > 1.9 * whole.seconds("all_reduce", 1e9, two)
    assert mesh.seconds("all_reduce", 1e9, eight) == pytest.approx(
        whole.seconds("all_reduce", 1e9, eight), rel=0.3
    )


def test_more_than_a_pair_goes_over_the_host():
    pairs = Fabric(
        cluster=nodes(1, per_node=4, wiring="pairs", device="rtx-3090", inside="nvlink-3"), habits=QUIET
    )
    two, four = (pairs.seconds("all_reduce", 1e9, Group(ranks=ranks, per_node=ranks)) for ranks in (2, 4))
    assert four > 3 * two


def test_numbers_of_plans_are_read_or_refused_in_one_line():
    for text in (
        "model,stages=--4",
        "model,stages=4.0",
        "model,stages=९",
        "model,stages=",
        f"data,data={'9' * 99}",
    ):
        with pytest.raises(PlanError, match="give a whole number"):
            Plan.of(text)


def test_memory_of_stages_is_that_of_their_blocks(gpt2, cluster):
    plan = Plan.of("hybrid,stages=4,micro_batches=8", workers=4)
    made = simulate(gpt2, cluster, plan, batch=8)
    whole = simulate(gpt2, cluster, Plan(), batch=8).memory
    assert 0.2 * whole.parameters < made.memory.parameters < 0.7 * whole.parameters


# -- what stages hand on and what they average ---------------------------------------------------------------


def test_gradients_do_not_delay_what_a_stage_hands_on():
    layers = [a_layer(f"h.{place}", seconds=1e-3, parameters=50 * MIB, output=1e3) for place in range(8)]
    plan = Plan(strategy="hybrid", stages=8, data=2, micro_batches=8)
    several = play(work_of(*layers, micro_batches=8), plan, Fabric(cluster=nodes(2), habits=QUIET))
    alone = play(
        work_of(*layers, micro_batches=8), replace(plan, data=1), Fabric(cluster=nodes(1), habits=QUIET)
    )
    exchange = max(each.seconds for rank in several.ranks for each in rank.transfers if each.layers)
    assert several.step_s < alone.step_s + 1.5 * exchange  # not once for each stage


def test_stages_on_different_nodes_send_over_the_network():
    groups = groups_of(Plan(strategy="model", stages=16, micro_batches=16), nodes(2))
    assert [group.nodes for group in groups.neighbours] == [*[1] * 7, 2, *[1] * 7, 2]


def test_a_divided_state_takes_gradients_where_they_are_needed():
    layers = [a_layer(f"h.{place}", parameters=25 * MIB) for place in range(2)]
    work, fabric = work_of(*layers), Fabric(cluster=nodes(1), habits=QUIET)
    kinds = [
        {each.kind for each in play(work, plan, fabric).ranks[0].transfers}
        for plan in (Plan(data=8), Plan(data=8, state_shards=8))
    ]
    assert kinds == [{"all_reduce"}, {"reduce_scatter", "all_gather"}]


def test_a_plan_within_a_pod_does_not_cross_the_core():
    thin = replace(nodes(8), oversubscription=7.0, pod_nodes=4)
    plans = [Plan(data=workers) for workers in (32, 64)]
    inside, across = (
        Fabric(cluster=thin, habits=QUIET).seconds("all_reduce", 1e9, groups_of(plan, thin).data)
        for plan in plans
    )
    assert across > 4 * inside


def test_experts_of_sharded_ranks_are_divided_once(cluster):
    plan = Plan(strategy="sharded", data=8, shards=8)
    work = RankWork(layers=experts_of(0, 8e6), host_s=0.0, batch=1, micro_batches=1, interval=0.1)
    read = replace(laptime.workload("zener4", batch=1), network="experts")
    whole = memory_of(work, read, plan).parameters
    divided = replace(
        work,
        layers=tuple(
            replace(layer, parameters=layer.parameters // 8) if layer.experts else layer
            for layer in work.layers
        ),
    )
    assert memory_of(divided, read, replace(plan, experts=8)).parameters == pytest.approx(whole)


def test_a_network_in_bf16_travels_in_bf16(cluster):
    import torch

    with torch.device("meta"):
        network = torch.nn.Linear(4096, 4096, dtype=torch.bfloat16)
        read = laptime.workload(network, example=torch.empty(8, 4096, dtype=torch.bfloat16))
    moved = simulate(read, cluster, Plan(data=8), batch=8).step.ranks[0].transfers
    assert sum(each.bytes for each in moved) == pytest.approx(2 * (4096 * 4096 + 4096))


def test_what_a_training_run_cannot_be_is_refused():
    for wrong in (
        {"steps": 0},
        {"jitter": float("nan")},
        {"seed": -1},
        {"samples": -5},
        {"checkpoint_every_s": 0.0},
    ):
        with pytest.raises(PlanError, match="give"):
            TrainingRun(**wrong)


def test_a_batch_that_no_device_has_is_refused(gpt2, cluster):
    for batch in (0, -1, 10**15):
        with pytest.raises(PlanError, match="batch is"):
            simulate(gpt2, cluster, Plan(), batch=batch)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("data,servers=4", "servers and staleness are of"),
        ("data,groups=4", "groups are of mixed and local"),
        ("data,gradient_bytes=3", "1, 2, 4 or 8"),
        ("model,stages=4,stages=2", "given twice"),
    ],
)
def test_parts_that_a_plan_has_no_use_for_are_refused(text, said):
    with pytest.raises(PlanError, match=said):
        Plan.of(text)


def test_mixed_training_has_a_group_for_each_rank_unless_it_is_said():
    assert Plan.of("mixed", workers=8).groups == 8


def test_faster_devices_that_wait_are_the_largest_loss(gpt2, cluster):
    from laptime.hardware.cluster import OtherNodes
    from laptime.simulate.remedies import largest_loss

    unequal = replace(cluster, nodes=2, others=(OtherNodes(device="v100-sxm2-32gb", nodes=1),))
    loss = largest_loss(simulate(gpt2, unequal, Plan(data=16), batch=8))
    assert loss.kind == "slower devices"
    assert loss.share > 0.2


def test_unequal_asynchronous_workers_give_the_sum_of_their_gradients(gpt2, cluster):
    from laptime.hardware.cluster import OtherNodes

    plan = Plan.of("asynchronous,servers=8", workers=16)
    two = replace(cluster, nodes=2)
    rates = [
        simulate(gpt2, each, plan, batch=8).samples_per_s
        for each in (
            two,
            replace(two, others=(OtherNodes(device="v100-sxm2-32gb", nodes=1),)),
            replace(two, device="v100-sxm2-32gb"),
        )
    ]
    assert rates[1] == pytest.approx((rates[0] + rates[2]) / 2, rel=0.05)
