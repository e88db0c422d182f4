"""Files that the config names, and whose content becomes part of it.

The content decides what a message becomes, so plans must store it.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import GetCoreSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from waybill.config.base import ValueType

__all__ = ["DIRECTORY", "MAX_EMBEDDED_BYTES", "EmbeddedFile", "IsEmbeddedFile"]

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
