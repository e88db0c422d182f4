"""Base classes of the config's models: sections, types of values, and files that become part of the config.

A value type is metadata for `Annotated`. It parses and checks a value, names the allowed values when it refuses one,
and describes itself to the reference and to the JSON schema. Pydantic's own constraints are not used for that: their
messages name only the violated limit, or a pattern, and not all allowed values.

The content of an embedded file decides how messages are parsed, so plans must store it.
"""

from __future__ import annotations

import base64
import binascii
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, LiteralString

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema


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
    at: str | tuple[str | int, ...], message: str, kind: LiteralString = "section_error"
) -> PydanticCustomError:
    """Return an error for a section's validator to raise; the message is shown at the key `at` below the section."""
    # Pass the message as a value: pydantic would read braces in a template as placeholders.
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


DIRECTORY = "directory"
"""The key of pydantic's validation context for the directory of the config file."""

MAX_EMBEDDED_BYTES = 4 << 20
"""The content is stored in every plan and sent to every executor."""


@dataclass(frozen=True)
class EmbeddedFile:
    """A file's path and its content when the config was loaded."""

    path: str
    """The path as the config gives it."""
    content: bytes = field(repr=False)


class IsEmbeddedFile(ValueType):
    """An `EmbeddedFile`. The YAML gives its path, relative to the config's directory; a dump gives path and content."""

    type_name = "path"

    def __init__(self, content: str) -> None:
        """`content`: what the file contains, in words."""
        self.allowed = f"{content}, up to {MAX_EMBEDDED_BYTES >> 20} MiB; relative to the directory of the config"
        self._content = content

    def parse(self, value: Any, info: ValidationInfo | None = None) -> EmbeddedFile:
        """Return the file. Raise `ValueError` if it cannot be read. A dump is loaded without reading the file."""
        if isinstance(value, EmbeddedFile):
            return value
        if isinstance(value, dict):
            return self._from_dump(value)
        if not isinstance(value, str) or not value:
            raise ValueError(f"must be the path of {self._content}")
        directory = (info.context or {}).get(DIRECTORY) if info else None
        path = Path(directory, value) if directory else Path(value)
        return EmbeddedFile(value, _read(path))

    def _from_dump(self, value: dict[str, Any]) -> EmbeddedFile:
        path, content = value.get("path"), value.get("base64")
        if value.keys() != {"path", "base64"} or not isinstance(path, str) or not isinstance(content, str):
            raise ValueError(f"must be the path of {self._content}")
        try:
            return EmbeddedFile(path, base64.b64decode(content, validate=True))
        except (ValueError, binascii.Error):
            raise ValueError("base64 must contain Base64") from None

    def format(self, value: EmbeddedFile) -> dict[str, str]:
        """Return the file as a plan stores it."""
        return {"path": value.path, "base64": base64.b64encode(value.content).decode()}

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        written = core_schema.plain_serializer_function_ser_schema(self.format, when_used="json")
        return core_schema.with_info_plain_validator_function(self.parse, serialization=written)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_EMBEDDED_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ValueError(f"{path} cannot be read: {reason}") from None
    if len(content) > MAX_EMBEDDED_BYTES:
        raise ValueError(f"{path} is larger than {MAX_EMBEDDED_BYTES >> 20} MiB")
    return content
