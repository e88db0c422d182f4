"""Base classes of the config's models: sections, and types of values.

A value type is metadata for `Annotated`. It parses and checks a value, names what is allowed when it refuses one, and
describes itself to the reference and to the JSON schema. Pydantic's own constraints are not used for that: their
messages name the one limit that was missed, or a pattern, and not everything that is allowed.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import Any, LiteralString

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

__all__ = ["Matching", "NamedSection", "Section", "ValueType", "section_error"]


class Section(BaseModel):
    """A mapping of the YAML. It refuses unknown keys, and cannot be changed after it is loaded."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class NamedSection(Section):
    """A section with a field `name`, an enum. The name alone is the short form of a section with that name."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        names: Any = cls.model_fields["name"].annotation
        return {"anyOf": [{"enum": [name.value for name in names]}, handler(schema)]}


def section_error(
    at: str | tuple[str, ...], message: str, kind: LiteralString = "section_error"
) -> PydanticCustomError:
    """Return an error for a section's validator to raise; the message is shown at the key `at` below the section."""
    # The message goes in as a value: pydantic would read braces in a template as placeholders.
    keys = (at,) if isinstance(at, str) else at
    return PydanticCustomError(kind, "{message}", {"message": message, "at": keys})


class ValueType(ABC):
    """A type of value: how it is parsed, written, described, and checked by an editor."""

    type_name: str
    """The name of the type in the reference."""
    allowed: str
    """The allowed values, in words, for the reference."""

    @abstractmethod
    def parse(self, value: Any) -> Any:
        """Return the value as the model holds it. Raise `ValueError` with a message that names what is allowed."""

    def format(self, value: Any) -> Any:
        """Return the model's value as the YAML holds it."""
        return value

    def json_schema(self) -> JsonSchemaValue:
        """Return the JSON schema of the value in the YAML."""
        return {"type": "string"}

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        # A dump to JSON has the form of the YAML, so that it can be loaded again.
        written = core_schema.plain_serializer_function_ser_schema(self.format, when_used="json")
        return core_schema.no_info_plain_validator_function(self.parse, serialization=written)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return self.json_schema()


class Matching(ValueType):
    """A text that matches a pattern as a whole. `allowed` describes the pattern in words."""

    type_name = "text"

    def __init__(self, pattern: str, allowed: str, *, refused: str = "(?!)") -> None:
        """`refused`: a second pattern that must not match anywhere in the text, to keep the first one readable."""
        self.allowed = allowed
        self._pattern = pattern
        self._refused = refused

    def parse(self, value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError("must be text; put it in quotes" if value is not None else "must not be empty")
        if not re.fullmatch(self._pattern, value, re.ASCII) or re.search(self._refused, value):
            raise ValueError(f"must be {self.allowed}")
        return value

    def json_schema(self) -> JsonSchemaValue:
        return {"type": "string", "pattern": f"^(?:{self._pattern})$"}
