"""What the sections of a configuration are made of. A section stands beside what it configures.

No torch here, nor in the files that only hold sections: a configuration is checked before torch is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

Share = Annotated[float, Field(ge=0.0, lt=1.0)]
Count = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]  # what NumPy takes; torch takes more


class ConfigSection(BaseModel):
    """Frozen; an unknown key is an error. The docstring below a field is its text in `--explain`."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


class OneOf:
    """In an annotation: the field takes the names of a register, also those that are entered later."""

    def __init__(self, register: Mapping[str, Any]) -> None:
        self.register = register

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, name: str) -> str:
        if name not in self.register:
            raise PydanticCustomError("unknown_name", "one of {names}", {"names": ", ".join(self.register)})
        return name
