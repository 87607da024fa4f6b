"""Steps from the lines that a training printed, from CSV files, and from objects on lines."""

from __future__ import annotations

import ast
import csv
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO

from laptime.errors import DataError
from laptime.files.parse import WHOLE, parse_json
from laptime.files.parse import number as finite
from laptime.files.text import one_line
from laptime.model import Account, Stage, Step
from laptime.model.step import columns_of
from laptime.runs.importers.imported import Collected
from laptime.runs.importers.source import opened

_PIECE = 1 << 18  # characters read at once
_LONGEST = 1 << 20  # characters of a line
_LONGEST_TOLD = 4096  # what a step says is in the first of them
_MOST_ROWS = 1_000_000
_LONGEST_S = 1e9  # of a step: 30 years
_MOST_EPOCHS = 2**31
_DIGITS = 18
_LONGEST_VALUE = 100

_BREAKS = re.compile(r"[\r\n]+|\x08+")
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_BLANKS = re.compile(r"\s\s+")

# Possessive, and never begun inside a number: a line of digits takes time with its length, not its cube.
_NUMBER = r"((?<!\d)[-+]?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][-+]?\d++)?|nan|inf)"
_IS = r"[\"']?\s*[:=]?\s*"
_OF = r"(?<![\w-])(val(?:idation)?_|eval_|test_|train_)?"
_STEP = re.compile(
    r"(?<![\w/])(?:global[_ ]step|step|iter(?:ation)?|batch|mini-?batch)s?\b[\"']?\s*[:=#]?\s*[\[(]?\s*(\d+)",
    re.I,
)
_BAR = re.compile(r"^\s*(\d+)/(\d+|Unknown)\s*[\[━╸─]")  # Keras
_EPOCH = re.compile(r"(?<!\w)epochs?\b[\"']?\s*[:=#]?\s*[\[(]?\s*(\d+)", re.I)
_BRACKETS = re.compile(r"epoch[:\s]*\[(\d+)\]\s*\[\s*(\d+)/\d+\]", re.I)  # pytorch/examples
_LOSS = re.compile(rf"{_OF}(?:loss|cost){_IS}{_NUMBER}", re.I)
_TOP1 = re.compile(
    rf"{_OF}(?:top[-_@ ]?1|prec@1|acc@1|(?:sparse_)?(?:categorical_)?acc(?:uracy)?)"
    rf"(?:[ _]acc(?:uracy)?)?{_IS}{_NUMBER}\s*(%)?",
    re.I,
)
_TOPN = re.compile(
    rf"{_OF}(?:top[-_@ ]?(?:[2-9]|\d\d+|n|k)|prec@5|acc@5)(?:[ _]acc(?:uracy)?)?{_IS}{_NUMBER}\s*(%)?", re.I
)
_EACH = r"\s*/\s*(?:batch|step|it(?:er(?:ation)?)?|example_batch)\b"
_PER_STEP = re.compile(rf"{_NUMBER}\s*(sec(?:onds?)?|s|ms|us|µs){_EACH}", re.I)
_STEPS_PER_S = re.compile(rf"{_NUMBER}\s*(?:it|iter|steps?|batches)\s*/\s*s(?:ec)?\b", re.I)
_TIME = re.compile(
    rf"(?<![\w-])(?:step[_ ])?(?:time|duration|elapsed|took){_IS}{_NUMBER}\s*(sec(?:onds?)?|ms|us|µs|s)?\b",
    re.I,
)
_UNITS = {"ms": 1e-3, "us": 1e-6, "µs": 1e-6}
_SAMPLES_PER_S = re.compile(rf"{_NUMBER}\s*(?:examples|images|samples|imgs|img)\s*/\s*s(?:ec)?\b", re.I)
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?")
_VALIDATION = re.compile(r"(?<![a-z])(val(?:id(?:ation)?)?|eval(?:uation)?|test(?:ing)?)(?![a-z])", re.I)
_VALIDATION_VALUE = re.compile(r"(val(?:idation)?|eval|test)_\w+")
_OF_VALIDATION = ("val", "eval", "test")
_DICTIONARY = re.compile(r"\{\s*'[^{}]*\}\s*$")
_BARE = re.compile(r"(?<=[:\s])(-?inf|nan)(?=\s*[,}])")  # which Python prints, and does not read

# The groups of a pattern, and what tables and objects call them.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "step": ("step", "iteration", "iter", "global_step", "batch", "steps"),
    "epoch": ("epoch",),
    "loss": ("loss", "train_loss", "training_loss", "cost"),
    "top1": ("top1", "top_1", "acc", "accuracy", "train_acc", "train_accuracy", "acc1"),
    "topn": ("topn", "top5", "top_5", "acc5"),
    "seconds": ("seconds", "time", "time_s", "step_time", "duration", "wall_s", "sec_per_batch", "step_s"),
    "ms": ("ms", "time_ms", "step_ms", "milliseconds", "duration_ms"),
    "samples": ("samples", "batch_size", "examples"),
    "stage": ("stage", "phase", "split", "mode"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What a line says; None where it says nothing of it."""

    stage: Stage = Stage.TRAIN
    step: int | None = None
    epoch: int | None = None
    loss: float | None = None
    top1: float | None = None
    topn: float | None = None
    seconds: float | None = None
    samples: int | None = None
    moment: float | None = None


def read(files: Iterable[Path], *, pattern: str | None = None) -> Collected:
    """The steps of a log. `pattern` is searched in each line; its named groups are the columns."""
    collected = Collected(source="log", device={"type": "unknown", "name": "unknown device"})
    wanted = _compiled(pattern) if pattern is not None else None
    for file in files:
        with opened(file) as stream:
            rows = list(islice(_rows(_lines(stream), wanted), _MOST_ROWS + 1))
        shown = one_line(file)
        if len(rows) > _MOST_ROWS:
            raise DataError(f"{shown} tells of more than {_MOST_ROWS:,} steps; give a part of it")
        if not rows and wanted is not None:
            raise DataError(f"no line of {shown} matches the pattern; try it on one line of the file first")
        if not rows:
            raise DataError(
                f"{shown} is neither a profiler trace nor a log with steps that laptime knows; "
                "--pattern REGEX with groups such as (?P<step>…) and (?P<seconds>…) reads others"
            )
        if isinstance(rows[0], Line):
            _take(collected, rows)
        else:
            _take_own(collected, rows)
    return collected


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise DataError(f"the pattern is no regular expression ({error}); mend it") from error
    unknown = sorted(set(compiled.groupindex) - set(_NAMES))
    if unknown or not compiled.groupindex:
        what = f"a group {unknown[0]!r} that is not known" if unknown else "no named group"
        raise DataError(f"the pattern has {what}; use some of {', '.join(_NAMES)}, as in (?P<step>\\d+)")
    return compiled


def _lines(stream: TextIO) -> Iterator[str]:
    """The lines that hold something, one after the other; one that is longer than any is left out."""
    rest, whole = "", True
    while piece := stream.read(_PIECE):
        *lines, rest = _BREAKS.split(rest + piece)
        for line in lines:
            if whole and (text := _COLOURS.sub("", line)).strip():
                yield text
            whole = True
        if len(rest) > _LONGEST:
            rest, whole = "", False
    if whole and (text := _COLOURS.sub("", rest)).strip():
        yield text


def _rows(lines: Iterator[str], wanted: re.Pattern[str] | None) -> Iterator[Line | Mapping[str, Any]]:
    if wanted is not None:
        matches = (wanted.search(line) for line in lines)
        yield from (_read_named(match.groupdict()) for match in matches if match)
        return
    first = next(lines, None)
    if first is None:
        return
    if "," in first and (kind := _table_kind(first)) is not None:
        try:
            for row in csv.DictReader(chain([first], lines)):
                yield from [row] if kind == "own" else read_values(row)
        except csv.Error as error:
            raise DataError(f"the table is no CSV ({one_line(error)}); give another file") from None
        return
    for line in chain([first], lines):
        values = values_of(line)
        yield from read_values(values) if values is not None else read_line(line)


def _table_kind(first: str) -> str | None:
    """Whose table it is that begins with this line: `own`, `other`, or None where it is no header."""
    try:
        header = next(csv.reader([first]))
    except csv.Error:
        return None
    if {"stage", "step", "wall_s", "unexplained_s"} <= set(header):
        return "own"
    if any(re.fullmatch(r"[-+.\deE]+", cell.strip()) for cell in header):
        return None
    names = {cell.strip().lower().replace(" ", "_") for cell in header}
    return "other" if names & {*_NAMES["step"], *_NAMES["epoch"]} else None


def _take_own(collected: Collected, rows: Iterable[Any]) -> None:
    """The rows of our own `iterations.csv`, accounts included."""
    columns = columns_of(Step)
    for number, row in enumerate(rows, start=2):
        try:
            values: dict[str, Any] = {}
            for column in columns:
                if text := row.get(column.name):
                    value = text == "true" if column.type is bool else column.type(text)
                    if isinstance(value, float) and column.name not in ("loss", "top1", "topn"):
                        finite(value)
                    if isinstance(value, int) and not 0 <= value < WHOLE:
                        raise ValueError("a count that no table holds")
                    values[column.name] = value
            collected.steps.append(Step(**values))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"line {number} of the CSV is not of an iterations.csv: {error}") from error
    collected.source = "csv"


def _take(collected: Collected, rows: Iterable[Any]) -> None:
    """Steps from lines. Their whole time is unexplained: a log does not say where it went."""
    before: dict[Stage, float] = {}
    clock, untimed = 0.0, 0
    counts: Counter[Stage] = Counter()
    for row in rows:
        seconds = row.seconds
        if seconds is None and row.moment is not None and row.stage in before:
            seconds = max(0.0, row.moment - before[row.stage])
        if row.moment is not None:
            before[row.stage] = row.moment
        untimed += seconds is None
        collected.steps.append(
            Step.closed(
                step=row.step if row.step is not None else counts[row.stage],
                optimizer_step=row.step or 0,
                epoch=row.epoch or 0,
                stage=row.stage,
                start_s=clock,
                wall_s=seconds or 0.0,
                seconds={Account.FORWARD: 0.0},
                samples=row.samples,
                loss=row.loss,
                top1=row.top1,
                topn=row.topn,
            )
        )
        counts[row.stage] += 1
        clock += seconds or 0.0
    collected.note("from a log: a row is a line, and where its time went is not known")
    if untimed:
        collected.note(f"{untimed} of {len(collected.steps)} lines say no time; theirs is written as 0")


# -- a line as people print it ---------------------------------------------------------------------


def read_line(text: str) -> Iterator[Line]:
    """The training step that a line tells of, and the validation, if it tells of one (Keras does both)."""
    text = _BLANKS.sub(" ", text[:_LONGEST_TOLD])  # a run of blanks could be divided among three `\\s*`
    brackets, bar, step, epoch = (kind.search(text) for kind in (_BRACKETS, _BAR, _STEP, _EPOCH))
    number = _digits(brackets[2] if brackets else bar[1] if bar else step[1] if step else None)
    if number is None and not epoch:
        return
    validates = _VALIDATION.search(_VALIDATION_VALUE.sub("", text))
    of_line = Stage.VALIDATION if validates else Stage.TRAIN

    def stage_of(prefix: str | None) -> Stage:
        """By the name of the value (`val_loss`), else by a word anywhere in the line."""
        if not prefix:
            return of_line
        return Stage.VALIDATION if prefix.lower().startswith(_OF_VALIDATION) else Stage.TRAIN

    def accuracy(pattern: re.Pattern[str], stage: Stage) -> float | None:
        said = (match for match in pattern.finditer(text) if stage_of(match[1]) is stage)
        match = next(said, None)
        return _share(float(match[2]), percent=bool(match[3])) if match else None

    losses = {stage_of(match[1]): float(match[2]) for match in _LOSS.finditer(text)}
    seconds = _seconds(text)
    if not losses and (number is None or (seconds is None and not _TOP1.search(text))):
        return
    rate = _SAMPLES_PER_S.search(text)
    for stage in Stage:
        if stage in (losses or (of_line,)):
            yield Line(
                stage=stage,
                step=number,
                epoch=_digits(brackets[1] if brackets else epoch[1] if epoch else None, _MOST_EPOCHS),
                loss=losses.get(stage),
                top1=accuracy(_TOP1, stage),
                topn=accuracy(_TOPN, stage),
                seconds=seconds if stage is of_line else None,
                samples=_whole(float(rate[1]) * seconds, rounded=True) if rate and seconds else None,
                moment=_moment(text),
            )


def _seconds(text: str) -> float | None:
    """How long a step took, as its time or as a rate."""
    seconds = None
    if match := _PER_STEP.search(text):
        seconds = float(match[1]) * _UNITS.get(match[2].lower(), 1.0)
    elif match := _STEPS_PER_S.search(text):
        seconds = 1.0 / float(match[1]) if float(match[1]) > 0 else None
    elif match := _TIME.search(text):
        seconds = float(match[1]) * _UNITS.get((match[2] or "s").lower(), 1.0)
    return seconds if seconds is not None and 0 <= seconds < _LONGEST_S else None


def _moment(text: str) -> float | None:
    """When the line was written, in seconds. Only differences are used, so the zone does not matter."""
    match = _MOMENT.search(text)
    if match is None:
        return None
    try:
        when = datetime.fromisoformat(f"{match[1]}T{match[2]}+00:00")
    except ValueError:
        return None
    return when.timestamp() + float(f"0.{match[3] or 0}")


# -- named values ----------------------------------------------------------------------------------


def _read_named(groups: Mapping[str, str | None]) -> Line:
    """A line from named texts, as a pattern's groups or a table's columns give them."""
    numbers = {name: _number(groups.get(name)) for name in _NAMES if name != "stage"}
    seconds, milliseconds = numbers["seconds"], numbers["ms"]
    if seconds is None and milliseconds is not None:
        seconds = milliseconds * 1e-3
    stage = (groups.get("stage") or "").lower()
    return Line(
        stage=Stage.VALIDATION if stage == "v" or stage.startswith(_OF_VALIDATION) else Stage.TRAIN,
        step=_whole(numbers["step"]),
        epoch=_whole(numbers["epoch"], _MOST_EPOCHS),
        samples=_whole(numbers["samples"]),
        top1=_share(numbers["top1"]),
        topn=_share(numbers["topn"]),
        loss=numbers["loss"],
        seconds=seconds if seconds is not None and 0 <= seconds < _LONGEST_S else None,
    )


def values_of(line: str) -> dict[str, Any] | None:
    """The object on a line: of JSON, or a Python dictionary as Hugging Face's Trainer prints it; else None.

    The Trainer's progress bar may stand before it on the same line.
    """
    text = line.strip()
    value: Any = None
    with suppress(ValueError):
        value = parse_json(text) if text.startswith("{") else None
    match = _DICTIONARY.search(text) if value is None and len(text) <= _LONGEST_TOLD else None
    if match is not None:
        try:
            with warnings.catch_warnings():  # Python's compiler warns of `1is` and the like
                warnings.simplefilter("ignore")
                value = ast.literal_eval(_BARE.sub(r"'\1'", match[0]))
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


def read_values(values: Mapping[str, Any]) -> Iterator[Line]:
    """The lines that a row of a table or an object stands for: training, and validation beside it."""
    given = {_text(key).strip().lower().replace(" ", "_"): _text(each) for key, each in values.items() if key}
    if "train_runtime" in given:
        return  # the Trainer's last line is of the whole training

    def first(names: Iterable[str]) -> str | None:
        return next((given[name] for name in names if given.get(name)), None)

    line = _read_named({name: first(names) for name, names in _NAMES.items()})
    if line.step is None and line.epoch is None:
        return
    if line.loss is not None or line.seconds is not None or line.top1 is not None:
        yield line
    loss, acc, accuracy = (
        first(f"{prefix}_{name}" for prefix in _OF_VALIDATION) for name in ("loss", "acc", "accuracy")
    )
    if loss is not None:
        yield replace(
            line,
            stage=Stage.VALIDATION,
            loss=_number(loss),
            top1=_share(_number(acc or accuracy)),
            topn=None,
            seconds=None,
        )


def _number(text: str | None) -> float | None:
    try:
        return float(text.strip().rstrip("%")) if text is not None else None
    except ValueError:
        return None


def _share(value: float | None, *, percent: bool = False) -> float | None:
    """An accuracy as a share of one: 56 and 56 % are 0.56."""
    return value if value is None or not (percent or value > 1.0) else value / 100


def _whole(value: float | None, most: float = WHOLE, *, rounded: bool = False) -> int | None:
    """A count that a table can hold; anything else counts as missing."""
    return (round(value) if rounded else int(value)) if value is not None and 0 <= value < most else None


def _digits(text: str | None, most: float = WHOLE) -> int | None:
    return _whole(int(text), most) if text is not None and len(text) <= _DIGITS else None


def _text(value: Any) -> str:
    return str(value)[:_LONGEST_VALUE] if isinstance(value, str | int | float) else ""
