"""What all models of the config share."""

from __future__ import annotations

from typing import LiteralString

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError

__all__ = ["Section", "misfit"]


class Section(BaseModel):
    """A mapping of the YAML: no keys that are not known, no change once it is loaded."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


def misfit(at: str | tuple[str, ...], message: str, kind: LiteralString = "misfit") -> PydanticCustomError:
    """A fault of a whole section, to be raised by its validator, that is shown at one of its keys, `at`."""
    # The message goes in as a value: in the template itself, its braces would be taken for placeholders.
    keys = (at,) if isinstance(at, str) else at
    return PydanticCustomError(kind, "{message}", {"message": message, "at": keys})
