"""What the names in a profiler trace mean: steps, backward nodes, losses, optimizers, collectives."""

from __future__ import annotations

import re
from functools import lru_cache

from laptime.model import Account

STEP = re.compile(r"ProfilerStep#(\d{1,18})")
EVALUATE = "autograd::engine::evaluate_function"
# `NllLossBackward`, `ReluBackward1`, `torch::autograd::AccumulateGrad`: what a node is called where the
# engine does not say that it evaluates one.
NODE = re.compile(r"\w+Backward\d*$|(struct )?torch::autograd::\w+$")
LOSS = re.compile(r"loss|cross_entropy|criterion", re.IGNORECASE)
LOSS_OPERATOR = re.compile(r"aten::\w*(loss|cross_entropy|kl_div)\w*$")
OWN_MARKS = ("laptime ", "bench ")  # marks without a name of a layer
READS = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero")  # the loop looks at a number

# Modules without a weight matrix: they go along with the layer before them.
_LIGHT = re.compile(
    r"(Batch|Layer|Group|Instance|RMS|Local\w*|SyncBatch)Norm|\w*(ReLU|ELU|GELU|SiLU|Mish|Tanh|Sigmoid|Swish)|"
    r"\w*Dropout|\w*Pool|\w*Softmax|\w*Softplus|\w*Activation|Flatten|Unflatten|Identity|Upsample|\w*Shuffle|"
    r"\w*Pad|Fold|Unfold"
)
_DIMENSIONS = re.compile(r"[123]d$")
_HOST_RANGES = (
    (
        re.compile(r"enumerate\(DataLoader\)|data_?load|(get|next|load|fetch|wait_for)_batch", re.IGNORECASE),
        Account.DATA_WAIT,
    ),
    (re.compile(r"copy_batch", re.IGNORECASE), Account.COPY),
    (re.compile(r"Optimizer\.step#|optimizer[._ ]?step", re.IGNORECASE), Account.UPDATE),
    (re.compile(r"Optimizer\.zero_grad#|zero_grad", re.IGNORECASE), Account.HOST),
    (re.compile(r"ccl:|gloo:|mpi:|ucc:|c10d|all_?reduce", re.IGNORECASE), Account.COMMUNICATION),
)
# Kernels of NCCL, of those that stand in for it, and of the one-shot collectives of inference engines.
_COLLECTIVE = re.compile(
    r"nccl|rccl|hccl|xccl|oneccl|\bccl_|nvshmem|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|"
    r"cross_device_reduce",
    re.IGNORECASE,
)
_COMMUNICATION = ("c10d::", "_c10d_functional::", "record_param_comms")
_COPY = ("aten::to", "aten::_to_copy", "aten::copy_", "aten::pin_memory")
_UPDATE = ("aten::_foreach_", "aten::_fused_")


def host_account(name: str) -> Account | None:
    """The account of a range that is no layer, by its name; None of any other range."""
    return next((account for pattern, account in _HOST_RANGES if pattern.search(name)), None)


def operator_account(name: str, done: bool) -> Account:
    """Where an operator that is in no range and no module belongs; `done` is after a backward pass."""
    if name.startswith(_COMMUNICATION):
        return Account.COMMUNICATION
    if name in _COPY:
        return Account.COPY
    if done or name in READS:
        return Account.UPDATE if name.startswith(_UPDATE) else Account.HOST
    return Account.FORWARD


@lru_cache(maxsize=10_000)
def communicates(kernel: str) -> bool:
    """Whether a kernel is a collective, by its own name: what it is a template of does not count."""
    own = kernel.replace("(anonymous namespace)::", "").partition("(")[0].partition("<")[0]
    return _COLLECTIVE.search(own) is not None


def is_light(kind: str) -> bool:
    """Whether a class of modules has no weight matrix."""
    return _LIGHT.fullmatch(_DIMENSIONS.sub("", kind)) is not None
