"""One step: its accounts add up to the wall time or the step cannot be built. Its fields are table columns.

A column is one field of a value: `name: Annotated[type, "meaning"] = default`. The Arrow schema, the CSV
headers, what `log()` keeps and the reference follow from the fields.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from laptime.errors import UnbalancedStep
from laptime.model.accounts import ACCOUNTS, Account, Stage

# Sums of a few hundred float64 intervals stay within this of the wall time; anything more is an error.
TOLERANCE_S = 1e-7
RELATIVE_TOLERANCE = 1e-9

Value = TypeVar("Value")

LOGGED = object()  # marks a column that `recording.log()` fills

Int32 = Annotated[int, 32]
Logged = Annotated[float | None, LOGGED]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredColumn:
    """One column of a table."""

    name: str
    type: type
    bits: int  # of a number
    nullable: bool
    default: Any  # dataclasses.MISSING where every row must give it
    meaning: str
    logged: bool


BUBBLE_COLUMNS = ("bubble_fill_s", "bubble_drain_s", "bubble_imbalance_s")  # the causes of `idle_s`


def columns_of(value: type) -> tuple[StoredColumn, ...]:
    """The columns of a value's fields, in their order."""
    hints = get_type_hints(value, include_extras=True)
    columns = []
    for field in dataclasses.fields(value):
        hint = hints[field.name]
        facts = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        bare = get_args(hint)[0] if facts else hint
        columns.append(
            StoredColumn(
                name=field.name,
                type=next(kind for kind in get_args(bare) or (bare,) if kind is not NoneType),
                bits=next((fact for fact in facts if isinstance(fact, int)), 64),
                nullable=NoneType in get_args(bare),
                default=field.default,
                meaning=next((fact for fact in facts if isinstance(fact, str)), ""),
                logged=LOGGED in facts,
            )
        )
    return tuple(columns)


def _with_accounts(value: type[Value]) -> type[Value]:
    """Give a value a column for each account, after its wall time."""
    given = vars(value)["__annotations__"]
    columns: dict[str, Any] = {}
    for name, hint in given.items():
        columns[name] = hint
        if name == "wall_s":
            for account in ACCOUNTS:
                kind = float | None if account.traced else float
                columns[account.column] = Annotated[kind, account.meaning]
                setattr(value, account.column, None if account.traced else 0.0)
    value.__annotations__ = columns
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
@_with_accounts
class Step:
    """One batch, from the end of the previous step to its own end.

    `idle_s` is None on steps without a kernel trace, unless they are a pipeline's: unknown is not zero.
    """

    stage: Annotated[Stage, "`train` or `validation`"] = Stage.TRAIN
    attempt: Annotated[Int32, "0, and one more after each resume"] = 0
    step: Annotated[int, "number of the step, from 0"]
    optimizer_step: Annotated[
        int, "updates made by the end of it; with gradient accumulation several steps have the same"
    ] = 0
    epoch: Annotated[Int32, "pass over the data, from 0"] = 0
    rank: Annotated[Int32, "process of a distributed training"] = 0
    device: Annotated[str, "`cpu`, or `cuda:0` and so on"] = "cpu"
    start_s: Annotated[float, "since the run began"]
    wall_s: Annotated[float, "from the end of the previous step to its own end"]
    # Here is a column for each account: `data_wait_s` to `unexplained_s`.
    samples: Annotated[int | None, "in the batch"] = None
    loss: Annotated[Logged, "as logged"] = None
    top1: Annotated[Logged, "share of samples whose first guess is right, as logged"] = None
    topn: Annotated[Logged, "share of samples with the right answer among the first guesses, as logged"] = (
        None
    )
    bubble_fill_s: Annotated[
        float | None, "of `idle_s`: a pipeline's stage waits for its first input; null in other steps"
    ] = None
    bubble_drain_s: Annotated[
        float | None, "of `idle_s`: after its last forward pass a stage waits for gradients"
    ] = None
    bubble_imbalance_s: Annotated[float | None, "of `idle_s`: in between, a stage waits for a slower one"] = (
        None
    )
    staleness: Annotated[
        Logged, "updates that other workers made since the parameters of this step were read"
    ] = None
    instrumented: Annotated[bool, "whether layers were marked in this step"] = False

    if TYPE_CHECKING:

        def __getattr__(self, column: str) -> Any:
            """Seconds of an account."""

    def __post_init__(self) -> None:
        seconds = self.accounts()
        bad = [name for name, value in seconds.items() if value is not None and not math.isfinite(value)]
        if bad or not math.isfinite(self.wall_s):
            raise UnbalancedStep(f"step {self.step}: {', '.join(bad) or 'wall_s'} is not a finite number")
        tolerance = TOLERANCE_S + RELATIVE_TOLERANCE * abs(self.wall_s)
        negative = [name for name, value in seconds.items() if value is not None and value < -tolerance]
        if negative or self.wall_s < 0:
            raise UnbalancedStep(f"step {self.step}: {', '.join(negative) or 'wall_s'} is negative")
        total = sum(value for value in seconds.values() if value is not None)
        if abs(total - self.wall_s) > tolerance:
            raise UnbalancedStep(
                f"step {self.step}: the accounts add up to {total:.9f} s, the wall is {self.wall_s:.9f} s"
            )

    def accounts(self) -> dict[Account, float | None]:
        """Seconds by account, in the order of the columns."""
        return {account: getattr(self, account.column) for account in ACCOUNTS}

    @classmethod
    def closed(
        cls, *, step: int, start_s: float, wall_s: float, seconds: Mapping[Account, float], **fields: object
    ) -> Step:
        """A step whose left-over time is published as `unexplained`, the only account computed that way."""
        columns: dict[str, object] = {account.column: seconds[account] for account in seconds}
        columns[Account.UNEXPLAINED.column] = wall_s - sum(seconds.values())
        return cls(step=step, start_s=start_s, wall_s=wall_s, **columns, **fields)  # type: ignore[arg-type]
