"""Optimizers: state per parameter, memory passes per update, and options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from laptime.model import OTHER_LAYER, Operation, Phase, Workload
from laptime.ops.registry import Growth, OperationKind, Sizes, operation_kind


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRule:
    """How an optimizer updates parameters."""

    name: str
    torch_class: str  # of torch.optim
    state_values: int  # kept for each parameter
    passes: int  # reads and writes of a tensor of the parameters' size
    temporaries: int = 1  # tensors of the parameters' size that live during the update
    learning_rate: float = 1e-3  # the usual one
    momentum_values: int = 0  # kept for each parameter beside `state_values`, if it has momentum
    settings: tuple[str, ...] = ()  # what it takes of a configuration beside rate, betas, eps and decay


# By torch's multi-tensor implementations, which are the default on CUDA: each of their operations reads and
# writes every tensor; fused ones pass fewer times. Learning rates are torch's defaults; for SGD, which
# has none, 0.01.
_RULES = (
    UpdateRule(name="sgd", torch_class="SGD", state_values=0, passes=3, temporaries=0, learning_rate=0.01),
    UpdateRule(
        name="momentum",
        torch_class="SGD",
        state_values=1,
        passes=8,
        temporaries=0,
        learning_rate=0.01,
        settings=("momentum", "nesterov"),
    ),
    UpdateRule(
        name="rmsprop",
        torch_class="RMSprop",
        state_values=1,
        passes=13,
        momentum_values=1,
        settings=("momentum",),
    ),
    UpdateRule(name="adagrad", torch_class="Adagrad", state_values=1, passes=10, learning_rate=0.01),
    UpdateRule(
        name="adadelta", torch_class="Adadelta", state_values=2, passes=20, temporaries=2, learning_rate=1.0
    ),
    UpdateRule(name="adam", torch_class="Adam", state_values=2, passes=16),
    UpdateRule(name="adamw", torch_class="AdamW", state_values=2, passes=18),
)
OPTIMIZERS = {rule.name: rule for rule in _RULES}
ASSUMED = OPTIMIZERS["adam"]  # of an unknown optimizer


def rule_of(torch_class: str, *, momentum: bool) -> UpdateRule | None:
    """The rule of an optimizer by the name of its class; None where nobody knows it."""
    rules = [rule for rule in OPTIMIZERS.values() if rule.torch_class.lower() == torch_class.lower()]
    rule = next((rule for rule in rules if ("momentum" in rule.settings) == momentum), (*rules, None)[0])
    if rule is not None and momentum and rule.momentum_values:
        return replace(rule, state_values=rule.state_values + rule.momentum_values)
    return rule


def assumed_rule(classes: Sequence[str], *, momentum: bool) -> tuple[UpdateRule, str | None]:
    """The rule of an optimizer whose class, and those it extends, are called so; with a note if assumed."""
    for place, name in enumerate(classes):
        if rule := rule_of(name, momentum=momentum):
            return rule, f"{classes[0]} is counted as {name}, which it extends" if place else None
    kept = f"{ASSUMED.state_values} values kept for each parameter, {ASSUMED.passes} passes over all of them"
    return ASSUMED, f"{classes[0]} is no optimizer that laptime knows: it is counted as Adam ({kept})"


def temporaries(workload: Workload) -> int:
    """Tensors of the parameters' size that live during the update."""
    update = next(iter(workload.phase(Phase.UPDATE)), None)
    rule = OPTIMIZERS.get(update.name.partition(".")[2]) if update is not None else None
    return rule.temporaries if rule is not None else 0


@operation_kind("optimizer")
class OptimizerUpdate(OperationKind):
    """The update of `params` parameters in `tensors` tensors; no network runs it itself."""

    microbenchmark = "optimizer"
    feature_sizes = ("params", "tensors")

    def growth(self, operation: Operation, batch: int) -> Growth:
        return Growth()

    def weights(self, sizes: Sizes) -> set[int]:
        return {sizes["params"]}


def update_operation(
    rule: UpdateRule, parameters: int, tensors: int, size: int, *, layer: str = OTHER_LAYER
) -> Operation:
    """One pass after another over parameters of `size` bytes; of eight, five read and three write."""
    return Operation(
        name=f"optimizer.{rule.name}",
        kind="optimizer",
        phase=Phase.UPDATE,
        layer=layer,
        dtype="float32",
        sizes={"params": parameters, "tensors": tensors, "passes": rule.passes},
        read=size * rule.passes * 5 // 8,
        written=size * rule.passes * 3 // 8,
    )
