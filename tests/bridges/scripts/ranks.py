"""Ranks of a launcher, or started by the script itself; the second one is late."""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(rank, world):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(5):
        time.sleep(0.1 * rank)
        loss = nn.functional.cross_entropy(net(torch.ones(4, 8)), torch.arange(4))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    sys.stdout.write(f"{rank} {sum(p.double().sum().item() for p in net.parameters())}\n")  # in one piece
    dist.destroy_process_group()


def alone(number, fails):
    torch.set_num_threads(1)
    net = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.ones(4, 8)).sum().backward()
        optimizer.step()
    if number == 1 and fails:
        raise RuntimeError("planted")


if __name__ == "__main__":
    kind, *more = sys.argv[1:] or ["launched"]
    if kind == "launched":
        train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    elif kind == "spawn":
        mp.spawn(train, (2,), nprocs=2)
    else:
        processes = [mp.get_context(kind).Process(target=alone, args=(k, "fails" in more)) for k in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        sys.exit(max(process.exitcode for process in processes))
