"""A process that has imported torch and laptime, and forks itself for every script.

Importing torch takes three seconds, a fork a few milliseconds. The harness writes an order
as a line of JSON and reads the exit status; arguments name what else to import.
"""

import atexit
import faulthandler
import gc
import json
import os
import runpy
import sys
import threading
import traceback
from importlib import import_module

IMPORTED = (
    "torch",
    "torch._dynamo",  # every optimizer imports it at its first step
    "laptime",
    "laptime.cli",
    "laptime.bridges.scripts.run",
    "laptime.render.terminal.run_text",
)
PATIENCE_S = 55  # then a script tells its stack and ends: two of them take less than pytest's own limit


def main():
    sys.path.pop(0)  # this folder, which a script's own Python would not have
    for name in (*IMPORTED, *sys.argv[1:]):
        import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a child would otherwise copy every page
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            carry_out(order)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def carry_out(order):
    """Be the process that the order asks for: its streams, its directory, its arguments. Does not return."""
    for number, path in ((0, os.devnull), (1, order["stdout"]), (2, order["stderr"])):
        opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        os.dup2(opened, number)
        os.close(opened)
    faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
    os.chdir(order["directory"])
    sys.argv = order["argv"]
    end(status_of(run_laptime if order["recorded"] else run_bare))


def run_bare():
    """As `python script.py arguments` would."""
    sys.path.insert(0, os.path.dirname(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")


def run_laptime():
    """As the command `laptime` would."""
    import_module("laptime.cli").main()


def status_of(run):
    """The exit status that Python would end with."""
    try:
        run()
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def end(status):
    """As Python ends, except that nothing is freed: threads are waited for and exit functions run."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
