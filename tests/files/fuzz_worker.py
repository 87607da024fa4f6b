"""`python -m tests.files.fuzz_worker SEED COUNT`: so many mutated files through all doors, within 1 GiB.

A process of its own, so that a limit of memory and an alarm can end what a test could not.
"""

import json
import os
import random
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

MOST_BYTES = 2**30
MOST_S = 10


def main() -> None:
    seed, count = sys.argv[1], int(sys.argv[2])
    only = sys.argv[3] if len(sys.argv) > 3 else ""
    from tests.files.doors import doors

    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CONFIG_HOME"] = os.environ["XDG_DATA_HOME"] = folder
        chosen = [door for door in doors(Path(folder)) if only in door.name]
        _limit_memory()
        failures = []
        done: dict[str, int] = {}
        whole = sum(door.weight for door in chosen)
        for door in chosen:
            before = door.path.read_bytes() if door.path.exists() else None
            for number in range(-(-count * door.weight // whole)):
                failure = _tried(door, random.Random(f"{seed}/{door.name}/{number}"))
                done[door.name] = done.get(door.name, 0) + 1
                if failure:
                    failures.append({"door": door.name, "number": number, "failure": failure})
            if before is None:
                door.path.unlink()
            else:
                door.path.write_bytes(before)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(json.dumps({"done": done, "failures": failures, "peak_kib": peak}))


def _limit_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES, used + MOST_BYTES))

    def too_long(*_: object) -> None:
        raise TimeoutError(f"more than {MOST_S} s")

    signal.signal(signal.SIGALRM, too_long)


def _tried(door, rng: random.Random) -> str | None:
    """What came out that is neither a result nor an error of laptime's own; None where nothing did."""
    from laptime.errors import LaptimeError

    door.path.write_bytes(door.spoil(rng))
    signal.alarm(MOST_S)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            door.read(door.path)
    except LaptimeError as error:
        return f"more than one line: {str(error)[:200]!r}" if not _is_clear(str(error)) else None
    except BaseException:
        return traceback.format_exc(limit=-6)[-1500:]
    finally:
        signal.alarm(0)
    return None


def _is_clear(message: str) -> bool:
    """Each line of a message shows itself; a configuration has one for each of its problems."""
    return len(message) < 30_000 and all(line.isprintable() for line in message.split("\n"))


if __name__ == "__main__":
    main()
