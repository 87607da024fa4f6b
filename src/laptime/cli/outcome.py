"""What a verb prints: progress while it works, its answer, and one clear line where it fails.

It exits with 0, 1 (it failed) or 2 (wrong usage). The one place that catches our errors.
"""

from __future__ import annotations

import errno
import inspect
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from typer.core import TyperGroup

from laptime import __version__
from laptime.cli.options import Json
from laptime.errors import ConfigError, LaptimeError
from laptime.files.text import first_line, one_line, visible

if TYPE_CHECKING:
    from rich.text import Text

    from laptime.views.run_view import RunView

# Click's, or that of the copy which newer versions of typer bring.
_ClickException: type[Exception] = typer.BadParameter.__mro__[2]

TRACEBACK = "LAPTIME_TRACEBACK"
"""Set, an unexpected error leaves its traceback in a file and names it."""
_REFRESH_S = 0.2

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a verb: a document for `--json`, and the same as lines for a terminal of some width."""

    document: Callable[[], Any]
    lines: Callable[[int], Iterable[Text | str]]
    status: int = 0
    error: LaptimeError | None = None  # raised after the answer
    colour: bool | None = None

    @classmethod
    def of_run(
        cls, view: RunView, *, every_layer: bool = False, below: Sequence[str] = (), **more: Any
    ) -> Outcome:
        """The tables of a run and what stands below them; `more` is beside the run in the document."""
        from laptime.render.terminal.run_text import run_lines
        from laptime.views.run_document import document

        return cls(
            document=lambda: document(view) | more,
            lines=lambda width: (*run_lines(view, width, every_layer=every_layer), *below),
        )


def verb(function: Callable[..., Outcome]) -> Callable[..., None]:
    """A command of a function that returns its outcome: takes `--json`, prints one of the two, and exits.

    A function that has to know gets `as_json` itself.
    """
    signature = inspect.signature(function, eval_str=True)
    knows = "as_json" in signature.parameters

    @wraps(function)
    def command(*, as_json: bool, **options: Any) -> None:
        outcome = function(**options, **({"as_json": as_json} if knows else {}))
        if as_json:
            answer(outcome.document())
        else:
            from laptime.render import terminal

            to = terminal.console(colour=outcome.colour)
            for line in outcome.lines(to.width):
                print_out(line) if isinstance(line, str) else terminal.print_lines([line], to)
        if outcome.error is not None:
            raise outcome.error
        if outcome.status:
            raise typer.Exit(outcome.status)

    given = {name: parameter for name, parameter in signature.parameters.items() if name != "as_json"}
    last = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json)
    parameters = [*given.values(), last]
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
        except ConfigError as error:  # a configuration with several problems has a line for each
            fail(*str(error).split("\n"))
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


def fail(*reasons: str) -> NoReturn:
    """End with status 1 and one line for each reason."""
    say("laptime: " + "\n".join(" ".join(reason.split()) for reason in reasons))
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


def forgive_encoding() -> None:
    """A terminal that cannot show a character shows `?`; that is no reason to fail."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _forget_stdout() -> None:
    """Send what is still buffered nowhere: Python would complain of the broken pipe once more at its exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def laptime_command() -> str:
    """How this shell calls laptime: by its name, else by the path that it was started with."""
    started = Path(sys.argv[0])
    if started.name != "laptime":
        return f"{shlex.quote(sys.executable)} -m laptime"
    on_path = shutil.which("laptime")
    same = on_path is not None and Path(on_path).resolve() == started.resolve()
    return "laptime" if same else shlex.quote(str(started))


# -- while it works ------------------------------------------------------------------------------------------


def quiet_torch(*, traces_only: bool = False) -> None:
    """Keep torch's own chatter off the terminal. Of use only before torch is imported."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # announces the start and the end of every trace
    if not traces_only:  # the allocator warns of every block that is older than a trace
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


@contextmanager
def progress(title: str, total: int) -> Iterator[Tell]:
    """A bar on standard error, where that is a terminal.

    Gives a function to call after each of `total` steps, with a few words on how it goes. The bar is drawn
    from the loop itself, five times a second: a thread would take the processor from the steps that are
    being timed.
    """
    if not _on_terminal():
        yield lambda _: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from laptime.render.terminal import console

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[words]}", markup=False),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console(sys.stderr), transient=True, auto_refresh=False) as shown:
        task = shown.add_task(title, total=total, words="")
        drawn = 0.0

        def tell(words: str) -> None:
            nonlocal drawn
            shown.advance(task)
            if time.monotonic() - drawn >= _REFRESH_S:
                shown.update(task, words=words, refresh=True)
                drawn = time.monotonic()

        yield tell


@contextmanager
def waiting(title: str) -> Iterator[None]:
    """A spinner on standard error while something of unknown length goes on."""
    if not _on_terminal():
        yield
        return
    from laptime.render.terminal import console

    with console(sys.stderr).status(title):
        yield


def _on_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()
