"""A process that writes steps as fast as it can until it is killed.

Usage: fast_writer.py RUN COUNTERS FLUSH_INTERVAL FAN. COUNTERS is a file of two numbers: the steps appended
so far, and the steps that had been appended when the last completed flush began.
"""

import mmap
import struct
import sys
import threading
import time

from tests.runs.samples import a_layer_time, a_step, start

from laptime.runs import parts, schema


def main(run: str, counters: str, interval: float, fan: int) -> None:
    parts.FAN = fan
    with open(counters, "r+b") as file:
        memory = mmap.mmap(file.fileno(), 16)
    writer = start(run, interval=interval)

    def count(place: int, value: int) -> None:
        struct.pack_into("q", memory, place * 8, value)

    def appended() -> int:
        return int(struct.unpack_from("q", memory, 0)[0])

    def flush_for_ever() -> None:
        while True:
            time.sleep(interval)
            before = appended()
            writer.flush()
            count(1, before)

    number = 0
    while True:
        writer.append(
            "layers", schema.layers.table([a_layer_time(number, "conv"), a_layer_time(number, "fc")])
        )
        writer.append("steps", schema.steps.table([a_step(number)]))
        number += 1
        count(0, number)
        if number == 1:  # the first flush imports what it needs, which takes longer than all that follows
            writer.flush()
            threading.Thread(target=flush_for_ever, daemon=True).start()
            print("ready", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
