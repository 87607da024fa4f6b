"""What torch's optimizers keep for each parameter, and how often they pass over all of them."""

from __future__ import annotations

from laptime.model.workload import Optimizer

OPTIMIZERS = {
    "sgd": Optimizer(name="sgd", state_values=0, passes=3, temporaries=0),
    "momentum": Optimizer(name="momentum", state_values=1, passes=8, temporaries=0),
    "rmsprop": Optimizer(name="rmsprop", state_values=1, passes=13, temporaries=1),
    "adagrad": Optimizer(name="adagrad", state_values=1, passes=10, temporaries=1),
    "adadelta": Optimizer(name="adadelta", state_values=2, passes=20, temporaries=2),
    "adam": Optimizer(name="adam", state_values=2, passes=16, temporaries=1),
    "adamw": Optimizer(name="adamw", state_values=2, passes=18, temporaries=1),
}
"""By torch's multi-tensor implementations, which are the default on CUDA: each of their operations reads and
writes every tensor; fused ones pass fewer times."""
