"""How a verb ends: 0, 1 with one clear line, or 2 for wrong usage. The one place that catches our errors."""

from __future__ import annotations

import errno
import json
import os
import sys
from contextlib import suppress
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from laptime.errors import LaptimeError


class Commands(TyperGroup):
    """The verbs. What goes wrong in any of them is told in one line on standard error."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb that was asked for."""
        try:
            result = super().invoke(ctx)
            if sys.stdout is not None:
                sys.stdout.flush()  # a pipe that broke shows here rather than when Python exits
            return result
        except LaptimeError as error:
            fail(str(error))
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            fail(
                "torch is not installed; pip install torch (show, report, serve, compare, collect, export, "
                "query, devices do without)"
            )
        except KeyboardInterrupt:
            say("laptime: interrupted")
            raise typer.Exit(130) from None  # the shell's number for Ctrl-C
        except BrokenPipeError:
            _forget_stdout()
            raise typer.Exit(0) from None  # the reader has what it wanted
        except OSError as error:
            if error.filename is None and error.errno != errno.ENOSPC:
                raise
            if error.filename is None:
                _forget_stdout()
            fail(f"{error.filename or 'standard output'}: {error.strerror}; check the path and its disk")


def fail(reason: str) -> NoReturn:
    """End with status 1 and one line; a configuration with several problems has one for each."""
    say("laptime: " + "\n".join(" ".join(line.split()) for line in reason.splitlines()))
    raise typer.Exit(1)


def say(line: str = "") -> None:
    """A line on standard error, where everything goes that is not the answer."""
    with suppress(ValueError, OSError):  # a recorded script may have closed it
        print(line, file=sys.stderr)


def answer(document: Any) -> None:
    """The one JSON document of `--json`, in plain ASCII so that no encoding can spoil it."""
    from laptime.files.write import plain

    print(json.dumps(plain(document), indent=1, allow_nan=False))


def forgive_encoding() -> None:
    """A terminal that cannot show a character shows `?`; that is no reason to fail."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _forget_stdout() -> None:
    """Send what is still buffered nowhere: Python would complain of the broken pipe once more at its exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
