"""A plan on a cluster, played on a virtual clock. Never torch.

The public function `laptime.simulate` has the name of this folder, so the folder can be called.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _CallableFolder(ModuleType):
    """`import laptime.simulate.step` puts this folder where `laptime.simulate` is looked up."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """`laptime.api.simulate`, which only `laptime` itself may name here."""
        return sys.modules["laptime"].__getattr__("simulate")(*arguments, **options)


sys.modules[__name__].__class__ = _CallableFolder
