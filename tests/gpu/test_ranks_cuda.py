"""Ranks on a CUDA device: one NCCL rank waits for nobody; two that share the device are told apart."""

import os
import statistics
import time

import pytest
import torch
import torch.distributed as dist
from tests.recorder.two_ranks import free_port
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import laptime
from laptime.recorder.recorder import Recorder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
PLANTED_S = 0.3
STEPS = 6


def recorded(network, out, *, rank=0, late_s=0.0, **options):
    """A few steps; returns the fewest marks that one of them had."""
    optimizer = torch.optim.SGD(network.parameters(), 0.01)
    x, marks = torch.randn(64, 512, device="cuda"), []
    with Recorder(network, optimizer, out=out, rank=rank, **options) as recording:
        for _ in range(STEPS):
            with recording.step():
                time.sleep(late_s)
                network(x).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                marks.append(len(recording.timeline.owners))
    return min(marks)


def built():
    return nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8)).cuda()


def test_one_rank_over_nccl_waits_for_nobody_and_has_no_mark_more(tmp_path):
    alone = recorded(built(), tmp_path / "alone", layers=None)
    device = torch.device("cuda", 0)
    store = dist.TCPStore("localhost", free_port(), 1, is_master=True)
    dist.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=device)
    try:
        parallel = DistributedDataParallel(built(), device_ids=[0])
        assert recorded(parallel, tmp_path / "nccl", layers=None) == alone
    finally:
        dist.destroy_process_group()
    assert [step.communication_s for step in laptime.load(tmp_path / "nccl").steps] == [0.0] * STEPS


def one_of_two(rank, ranks, port, folder):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    parallel = DistributedDataParallel(built(), device_ids=[0])
    recorded(parallel, folder / "run", rank=rank, late_s=PLANTED_S * rank, every_step=True)
    dist.destroy_process_group()


def test_a_late_rank_is_waited_for_on_the_device_s_own_clock(tmp_path):
    from tests.recorder import two_ranks

    assert two_ranks.start(one_of_two, tmp_path) == [0, 0]
    run = laptime.load(tmp_path / "run")
    # The second step asks rank 0 for DDP's new buckets while it goes forward.
    late = [[s.communication_s for s in run.steps if s.rank == rank and s.step > 1] for rank in (0, 1)]
    assert statistics.median(a - b for a, b in zip(*late, strict=True)) == pytest.approx(PLANTED_S, rel=0.05)
    rows = [row for row in run.layer_table.to_pylist() if row["rank"] == 0 and row["step"] > 1]
    assert max(row["seconds"] for row in rows) < 0.2 * PLANTED_S
