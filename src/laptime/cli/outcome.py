"""How a verb ends: 0, 1 with one clear line, or 2 for wrong usage. The one place that catches our errors."""

from __future__ import annotations

import errno
import inspect
import json
import os
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from typer.core import TyperGroup

from laptime import __version__
from laptime.cli.options import Json
from laptime.errors import LaptimeError
from laptime.files.text import first_line, one_line, visible

# Click's, or that of the copy which newer versions of typer bring.
_ClickException: type[Exception] = typer.BadParameter.__mro__[2]

TRACEBACK = "LAPTIME_TRACEBACK"
"""Set, an unexpected error leaves its traceback in a file and names it."""

if TYPE_CHECKING:
    from laptime.views.run_view import RunView


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a verb: a document for `--json`, and a function that shows the same to a reader."""

    document: Any
    show: Callable[[], None]
    status: int = 0


def verb(function: Callable[..., Outcome]) -> Callable[..., None]:
    """A command of a function that returns its outcome: takes `--json`, prints one of the two, and exits."""

    @wraps(function)
    def command(*, as_json: bool, **options: Any) -> None:
        outcome = function(**options)
        if as_json:
            answer(outcome.document)
        else:
            outcome.show()
        if outcome.status:
            raise typer.Exit(outcome.status)

    signature = inspect.signature(function, eval_str=True)
    last = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json)
    parameters = [*signature.parameters.values(), last]
    command.__signature__ = signature.replace(parameters=parameters, return_annotation=None)  # type: ignore[attr-defined]
    return command


class Commands(TyperGroup):
    """The verbs. What goes wrong in any of them is said in one line on standard error."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb that was asked for."""
        try:
            result = super().invoke(ctx)
            if sys.stdout is not None:
                sys.stdout.flush()  # a pipe that broke shows here rather than when Python exits
            return result
        except LaptimeError as error:
            fail(str(error))
        except (typer.Exit, typer.Abort, _ClickException):
            raise  # typer's own ways to end
        except ModuleNotFoundError as error:
            if error.name != "torch":
                _fail_unexpected(error)
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
                _fail_unexpected(error)
            if error.filename is None:
                _forget_stdout()
            name = one_line(error.filename or "standard output")
            fail(f"{name}: {first_line(error)}; check the path and its disk")
        except Exception as error:  # the last catch: nobody is shown a traceback who did not ask for one
            _fail_unexpected(error)


def _fail_unexpected(error: Exception) -> NoReturn:
    """End with one line for a fault of laptime itself; with LAPTIME_TRACEBACK set, leave a bug report."""
    kind = {RecursionError: "something is nested too deeply", MemoryError: "there is not enough memory"}
    what = kind.get(type(error), f"an unexpected {type(error).__name__}: {first_line(error)[:300]}")
    if not os.environ.get(TRACEBACK):
        fail(f"{what}; {TRACEBACK}=1 before the same command writes a bug report")
    import tempfile
    import traceback

    handle, path = tempfile.mkstemp(prefix="laptime-bug-", suffix=".txt")
    with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(f"laptime {__version__}, Python {sys.version}\n{shlex.join(sys.argv)}\n\n")
        traceback.print_exception(error, file=file)
    fail(f"{what}; a bug report is in {path}, send it with the file that it happened with")


def fail(reason: str) -> NoReturn:
    """End with status 1 and one line; a configuration with several problems has one for each."""
    say("laptime: " + "\n".join(" ".join(line.split()) for line in reason.split("\n")))
    raise typer.Exit(1)


def say(line: str = "") -> None:
    """A line on standard error, where everything goes that is not the answer."""
    with suppress(ValueError, OSError):  # a recorded script may have closed it
        print(visible(line), file=sys.stderr)


def print_out(text: object = "", *, flush: bool = False) -> None:
    """What a verb answers on standard output. Nothing else in `cli` prints, so nothing prints an escape."""
    print(visible(str(text)), flush=flush)


def answer(document: Any) -> None:
    """The one JSON document of `--json`, in plain ASCII so that no encoding can spoil it."""
    from laptime.files.write import plain

    print(json.dumps(plain(document), indent=1, allow_nan=False))


def show_run(view: RunView, *, every_layer: bool = False) -> None:
    """The tables of a run on the terminal."""
    from laptime.render.terminal import run_text

    run_text.show(view, run_text.console(), every_layer=every_layer)


def forgive_encoding() -> None:
    """A terminal that cannot show a character shows `?`; that is no reason to fail."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _forget_stdout() -> None:
    """Send what is still buffered nowhere: Python would complain of the broken pipe once more at its exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
