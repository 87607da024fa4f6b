"""One of two ranks on hosts of the test bed: trains, measures the link by plain exchanges, trains again.

    python -m tests.training.wire_rank CONFIG FOLDER BYTES

The launcher changes the link's rate once `free-done` is there, and then makes `shaped-now`.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from laptime.training.config.reading import read_config
from laptime.training.session import train

PORT = 23_400


def exchange_s(size):
    """Seconds that an all-reduce of so many bytes takes, by itself.

    Not by plain sockets: for 1.2 MB at 10 Mbit/s they took 0.99 s, an all-reduce 1.04 s and the exchange of a
    training 1.07 to 1.09 s, in different runs. Probably the second half of a ring waits for the first.
    """
    dist.init_process_group("gloo")
    tensor, taken = torch.zeros(size // 4), []
    for _ in range(3):
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(tensor)
        taken.append(time.perf_counter() - begin)
    dist.destroy_process_group()
    return min(taken)


def main():
    config, folder, size = read_config(Path(sys.argv[1])).config, Path(sys.argv[2]), int(sys.argv[3])
    first = os.environ["RANK"] == "0"
    os.environ["MASTER_PORT"] = str(PORT)
    train(config, out=folder / "free")
    if first:
        (folder / "free-done").touch()
    while not (folder / "shaped-now").exists():
        time.sleep(0.05)
    os.environ["MASTER_PORT"] = str(PORT + 1)
    measured = exchange_s(size)
    if first:
        (folder / "seconds").write_text(str(measured))
    os.environ["MASTER_PORT"] = str(PORT + 2)
    train(config, out=folder / "shaped")


if __name__ == "__main__":
    main()
