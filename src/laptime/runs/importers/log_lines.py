"""One line of a training log as numbers: what it calls a step, a loss, an accuracy and a time."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Any

from laptime.files.parse import WHOLE, parse_json
from laptime.model import Stage

GROUPS = ("step", "epoch", "loss", "top1", "topn", "seconds", "ms", "samples", "stage")

# Possessive, and never begun inside a number: a line of digits takes time with its length, not its cube.
_NUMBER = r"((?<!\d)[-+]?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][-+]?\d++)?|nan|inf)"
_IS = r"[\"']?\s*[:=]?\s*"
_STEP = re.compile(
    r"(?<![\w/])(?:global[_ ]step|step|iter(?:ation)?|batch|mini-?batch)s?\b[\"']?\s*[:=#]?\s*[\[(]?\s*(\d+)",
    re.I,
)
_BAR = re.compile(r"^\s*(\d+)/(\d+|Unknown)\s*[\[━╸─]")  # Keras
_EPOCH = re.compile(r"(?<!\w)epochs?\b[\"']?\s*[:=#]?\s*[\[(]?\s*(\d+)", re.I)
_BRACKETS = re.compile(r"epoch[:\s]*\[(\d+)\]\s*\[\s*(\d+)/\d+\]", re.I)  # pytorch/examples
_LOSS = re.compile(rf"(?<![\w-])(val(?:idation)?_|eval_|test_|train_)?(?:loss|cost){_IS}{_NUMBER}", re.I)
_TOP1 = re.compile(
    rf"(?<![\w-])(val(?:idation)?_|eval_|test_|train_)?"
    rf"(?:top[-_@ ]?1|prec@1|acc@1|(?:sparse_)?(?:categorical_)?acc(?:uracy)?)"
    rf"(?:[ _]acc(?:uracy)?)?{_IS}{_NUMBER}\s*(%)?",
    re.I,
)
_TOPN = re.compile(
    rf"(?<![\w-])(val(?:idation)?_|eval_|test_|train_)?"
    rf"(?:top[-_@ ]?(?:[2-9]|\d\d+|n|k)|prec@5|acc@5)(?:[ _]acc(?:uracy)?)?{_IS}{_NUMBER}\s*(%)?",
    re.I,
)
_EACH = r"\s*/\s*(?:batch|step|it(?:er(?:ation)?)?|example_batch)\b"
_PER_STEP = re.compile(rf"{_NUMBER}\s*(sec(?:onds?)?|s|ms|us|µs){_EACH}", re.I)
_STEPS_PER_S = re.compile(rf"{_NUMBER}\s*(?:it|iter|steps?|batches)\s*/\s*s(?:ec)?\b", re.I)
_TIME = re.compile(
    rf"(?<![\w-])(?:step[_ ])?(?:time|duration|elapsed|took){_IS}{_NUMBER}\s*(sec(?:onds?)?|ms|us|µs|s)?\b",
    re.I,
)
_SAMPLES_PER_S = re.compile(rf"{_NUMBER}\s*(?:examples|images|samples|imgs|img)\s*/\s*s(?:ec)?\b", re.I)
_BLANKS = re.compile(r"\s\s+")
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?")
_VALIDATION = re.compile(r"(?<![a-z])(val(?:id(?:ation)?)?|eval(?:uation)?|test(?:ing)?)(?![a-z])", re.I)
_DICTIONARY = re.compile(r"\{\s*'[^{}]*\}\s*$")
_BARE = re.compile(r"(?<=[:\s])(-?inf|nan)(?=\s*[,}])")  # which Python prints, and does not read
_LONGEST = 4096  # characters of a line; what a step says is in the first of them
_LONGEST_S = 1e9  # of a step: 30 years
_MOST_EPOCHS = 2**31
_DIGITS = 18
_DIGITS_OF_TEXT = 100
_UNITS = {"ms": 1e-3, "us": 1e-6, "µs": 1e-6}
_OF_VALIDATION = ("val", "eval", "test")


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


def read_line(text: str) -> Iterator[Line]:
    """The training step that a line tells of, and the validation, if it tells of one (Keras does both)."""
    text = _BLANKS.sub(" ", text[:_LONGEST])  # a run of blanks could be divided among three `\\s*`
    brackets = _BRACKETS.search(text)
    bar = _BAR.search(text)
    step, epoch = _STEP.search(text), _EPOCH.search(text)
    number = _digits(brackets[2] if brackets else bar[1] if bar else step[1] if step else None)
    losses = {_stage_of(match[1], text): float(match[2]) for match in _LOSS.finditer(text)}
    if number is None and not (epoch and losses):
        return
    seconds = _seconds(text)
    if not losses and seconds is None and not _TOP1.search(text):
        return
    said = _Said(text)
    for stage in Stage:
        if stage in losses or (not losses and stage is _stage_of(None, text)):
            yield Line(
                stage=stage,
                step=number,
                epoch=_digits(brackets[1] if brackets else epoch[1] if epoch else None, _MOST_EPOCHS),
                loss=losses.get(stage),
                top1=said.share(_TOP1, stage),
                topn=said.share(_TOPN, stage),
                seconds=seconds if stage is _stage_of(None, text) else None,
                samples=said.samples(seconds),
                moment=said.moment(),
            )


class _Said:
    """The other values of a line: accuracy, samples, time of day."""

    def __init__(self, text: str) -> None:
        self._text = text

    def share(self, pattern: re.Pattern[str], stage: Stage) -> float | None:
        """An accuracy as a share of one."""
        for match in pattern.finditer(self._text):
            if _stage_of(match[1], self._text) is stage:
                return _share(float(match[2]), percent=bool(match[3]))
        return None

    def samples(self, seconds: float | None) -> int | None:
        """How many samples the step held, from its rate and its time."""
        rate = _SAMPLES_PER_S.search(self._text)
        return _whole(float(rate[1]) * seconds, rounded=True) if rate and seconds else None

    def moment(self) -> float | None:
        """When the line was written, in seconds."""
        match = _MOMENT.search(self._text)
        if not match:
            return None
        try:
            # Only differences are used, so the zone does not matter.
            when = datetime.fromisoformat(f"{match[1]}T{match[2]}+00:00").timestamp()
        except ValueError:
            return None
        return when + (float(f"0.{match[3]}") if match[3] else 0.0)


def _seconds(text: str) -> float | None:
    seconds = _said_seconds(text)
    return seconds if seconds is not None and 0 <= seconds < _LONGEST_S else None


def _said_seconds(text: str) -> float | None:
    if match := _PER_STEP.search(text):
        return float(match[1]) * _UNITS.get(match[2].lower(), 1.0)
    if match := _STEPS_PER_S.search(text):
        return 1.0 / float(match[1]) if float(match[1]) > 0 else None
    if match := _TIME.search(text):
        return float(match[1]) * _UNITS.get((match[2] or "s").lower(), 1.0)
    return None


def _stage_of(prefix: str | None, text: str) -> Stage:
    """By the name of the value (`val_loss`), else by a word anywhere in the line."""
    if prefix:
        return Stage.VALIDATION if prefix.lower().startswith(_OF_VALIDATION) else Stage.TRAIN
    return _stage_of_line(text)


@lru_cache(maxsize=1)  # asked for every value of a line
def _stage_of_line(text: str) -> Stage:
    words = re.sub(r"(val(?:idation)?|eval|test)_\w+", "", text)
    return Stage.VALIDATION if _VALIDATION.search(words) else Stage.TRAIN


def _share(value: float | None, *, percent: bool) -> float | None:
    """An accuracy as a share of one: 56 and 56 % are 0.56."""
    return value if value is None or not (percent or value > 1.0) else value / 100


# -- named values ----------------------------------------------------------------------------------

NAMES: Mapping[str, tuple[str, ...]] = {
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


def read_named(groups: Mapping[str, str | None]) -> Line:
    """A line from named texts, as a pattern's groups or a table's columns give them."""
    numbers = {name: _number(groups.get(name)) for name in GROUPS if name != "stage"}
    seconds = numbers["seconds"]
    if seconds is None and numbers["ms"] is not None:
        seconds = numbers["ms"] * 1e-3
    if seconds is not None and not 0 <= seconds < _LONGEST_S:
        seconds = None
    stage = (groups.get("stage") or "").lower()
    return Line(
        stage=Stage.VALIDATION if stage == "v" or stage.startswith(_OF_VALIDATION) else Stage.TRAIN,
        step=_whole(numbers["step"]),
        epoch=_whole(numbers["epoch"], _MOST_EPOCHS),
        samples=_whole(numbers["samples"]),
        top1=_share(numbers["top1"], percent=False),
        topn=_share(numbers["topn"], percent=False),
        loss=numbers["loss"],
        seconds=seconds,
    )


def values_of(line: str) -> dict[str, Any] | None:
    """The object on a line: of JSON, or a Python dictionary as Hugging Face's Trainer prints it; else None.

    The Trainer's progress bar may stand before it on the same line.
    """
    text = line.strip()
    try:
        if text.startswith("{"):
            return _object(parse_json(text))
    except ValueError:
        pass
    match = _DICTIONARY.search(text) if len(text) <= _LONGEST else None
    if match is None:
        return None
    try:
        with warnings.catch_warnings():  # Python's compiler warns of `1is` and the like
            warnings.simplefilter("ignore")
            return _object(ast.literal_eval(_BARE.sub(r"'\1'", match[0])))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def _object(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def read_values(values: Mapping[str, Any]) -> Iterator[Line]:
    """The lines that a row of a table or an object stands for: training, and validation beside it."""
    given = {_text(key).strip().lower().replace(" ", "_"): value for key, value in values.items() if key}
    if "train_runtime" in given:
        return  # the Trainer's last line is of the whole training
    texts = {
        name: next((_text(given[key]) for key in keys if given.get(key) not in (None, "")), None)
        for name, keys in NAMES.items()
    }
    line = read_named(texts)
    if line.step is None and line.epoch is None:
        return
    if line.loss is not None or line.seconds is not None or line.top1 is not None:
        yield line
    beside = {
        name: next(
            (_text(given[f"{prefix}_{name}"]) for prefix in _OF_VALIDATION if given.get(f"{prefix}_{name}")),
            None,
        )
        for name in ("loss", "acc", "accuracy")
    }
    if beside["loss"] is not None:
        yield replace(
            line,
            stage=Stage.VALIDATION,
            loss=_number(beside["loss"]),
            top1=_share(_number(beside["acc"] or beside["accuracy"]), percent=False),
            topn=None,
            seconds=None,
        )


def _number(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return float(text.strip().rstrip("%"))
    except ValueError:
        return None


def _whole(value: float | None, most: float = WHOLE, *, rounded: bool = False) -> int | None:
    """A count that a table can hold; anything else counts as missing."""
    return (round(value) if rounded else int(value)) if value is not None and 0 <= value < most else None


def _digits(text: str | None, most: float = WHOLE) -> int | None:
    return _whole(int(text), most) if text is not None and len(text) <= _DIGITS else None


def _text(value: Any) -> str:
    return str(value)[:_DIGITS_OF_TEXT] if isinstance(value, str | int | float) else ""
