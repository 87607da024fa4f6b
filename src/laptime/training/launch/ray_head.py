"""A Ray cluster on this machine, which ends with the process that asked for it, even if that is killed.

Ray ends its own servers with the process that started them. The agents of a node only look for their parent
now and then, and need not end soon (Ray 2.60: up to 20 s and more on a busy machine). So the cluster hangs on
a process of its own: it listens to the launcher on standard input, adopts whatever Ray leaves, and kills it.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from laptime.errors import TrainingError
from laptime.files.parse import parse_json
from laptime.files.text import first_line
from laptime.training.launch.descendants import adopt_descendants, kill_descendants

STORE_BYTES = 256 * 2**20  # of the object store; messages are as large as the parameters
# Gradients and parameters travel in the call itself. From 100 kB on Ray takes the object stores of the nodes,
# which is slower: docs/log.md has the figures.
DIRECT_CALLS = {
    "RAY_max_direct_call_object_size": str(16 * 2**20),
    "RAY_task_rpc_inlined_bytes_limit": str(128 * 2**20),
}


@contextmanager
def own_cluster() -> Iterator[str]:
    """A cluster while this lasts; gives its address."""
    # A session of its own: a terminal's Ctrl-C is for the launcher.
    head = subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert head.stdin is not None
    assert head.stdout is not None
    try:
        said = head.stdout.readline()
        told = parse_json(said) if said else {"error": "it ended at once"}
        if "error" in told:
            raise TrainingError(
                f"a Ray cluster on this machine could not be started ({told['error']}); "
                "the newest folder in /tmp/ray has its logs"
            )
        yield str(told["address"])
    finally:
        head.stdin.close()
        head.stdout.close()
        head.wait()


def main() -> None:
    """Make a cluster, tell its address, and end it with the launcher."""
    adopt_descendants()
    # Workers of Ray are started when an actor needs one, not ahead of time: each imports torch.
    fixed = {"RAY_prestart_worker_first_driver": "0", "RAY_USAGE_STATS_ENABLED": "0", **DIRECT_CALLS}
    os.environ |= fixed | os.environ
    listening = threading.Thread(target=_end_with_launcher)
    listening.start()
    try:
        with redirect_stdout(sys.stderr):
            import ray

            context: Any = ray.init(
                address="local",
                include_dashboard=False,
                object_store_memory=STORE_BYTES,
                num_gpus=0,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        told = {"address": context.address_info["gcs_address"]}
    except Exception as error:
        told = {"error": first_line(error)}
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()
    listening.join()


def _end_with_launcher() -> None:
    sys.stdin.buffer.read()  # until the launcher has closed it or is gone
    kill_descendants()
    os._exit(0)


if __name__ == "__main__":
    main()
