"""What all models of the config share."""

from __future__ import annotations

from typing import Any, LiteralString

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

__all__ = ["NamedSection", "Section", "misfit"]


class Section(BaseModel):
    """A mapping of the YAML: no keys that are not known, no change once it is loaded."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class NamedSection(Section):
    """A section with a field `name`, an enum. The name alone is short for a section with that name."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        names: Any = cls.model_fields["name"].annotation
        return {"anyOf": [{"enum": [name.value for name in names]}, handler(schema)]}


def misfit(at: str | tuple[str, ...], message: str, kind: LiteralString = "misfit") -> PydanticCustomError:
    """A fault of a whole section, to be raised by its validator, that is shown at one of its keys, `at`."""
    # The message goes in as a value: in the template itself, its braces would be taken for placeholders.
    keys = (at,) if isinstance(at, str) else at
    return PydanticCustomError(kind, "{message}", {"message": message, "at": keys})
