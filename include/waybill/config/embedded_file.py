"""Files that the config names and holds: what is in them decides what a message becomes, and a plan must keep that."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

__all__ = ["DIRECTORY", "MAX_EMBEDDED_BYTES", "EmbeddedFile", "IsEmbeddedFile"]

DIRECTORY = "directory"
"""The key of pydantic's validation context under which the config's own directory is."""

MAX_EMBEDDED_BYTES = 4 << 20
"""It goes into every plan, and to every executor."""


@dataclass(frozen=True)
class EmbeddedFile:
    """A file as it was when the config was loaded."""

    path: str
    """As the config gives it."""
    content: bytes = field(repr=False)


@dataclass(frozen=True)
class IsEmbeddedFile:
    """A file's path; relative to the config's directory. What was dumped holds the content, and no file is read."""

    what: str

    type_name: ClassVar[str] = "path"

    @property
    def allowed(self) -> str:
        return f"{self.what}, up to {MAX_EMBEDDED_BYTES >> 20} MiB; relative to the directory of the config"

    def parse(self, value: Any, info: ValidationInfo) -> EmbeddedFile:
        """Raises `ValueError` that says why the file cannot be read."""
        if isinstance(value, EmbeddedFile):
            return value
        if isinstance(value, dict):
            return self._dumped(value)
        if not isinstance(value, str) or not value:
            raise ValueError(f"must be the path of {self.what}")
        directory = (info.context or {}).get(DIRECTORY)
        path = Path(directory, value) if directory else Path(value)
        return EmbeddedFile(value, _read(path))

    def _dumped(self, value: dict[str, Any]) -> EmbeddedFile:
        path, content = value.get("path"), value.get("base64")
        if value.keys() != {"path", "base64"} or not isinstance(path, str) or not isinstance(content, str):
            raise ValueError(f"must be the path of {self.what}")
        try:
            return EmbeddedFile(path, base64.b64decode(content, validate=True))
        except (ValueError, binascii.Error):
            raise ValueError("base64 must be base64") from None

    def format(self, value: EmbeddedFile) -> dict[str, str]:
        """As a plan holds it."""
        return {"path": value.path, "base64": base64.b64encode(value.content).decode()}

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        written = core_schema.plain_serializer_function_ser_schema(self.format, when_used="json")
        return core_schema.with_info_plain_validator_function(self.parse, serialization=written)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "string"}


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_EMBEDDED_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ValueError(f"{path} cannot be read: {why}") from None
    if len(content) > MAX_EMBEDDED_BYTES:
        raise ValueError(f"{path} is larger than {MAX_EMBEDDED_BYTES >> 20} MiB")
    return content
