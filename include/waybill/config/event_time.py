"""Where a message says when its event happened."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from waybill.config.enums import EventTimeFormat
from waybill.config.model import Section
from waybill.config.values import IsFieldPath

__all__ = ["EventTime", "FieldPath"]

FieldPath = Annotated[tuple[str, ...], IsFieldPath()]


class EventTime(Section):
    """Where a message says when its event happened."""

    field: FieldPath = Field(
        description="Field path, e.g. `time.scheduled`; for `regex` the name of a group, for `delimited` of a column."
    )
    format: EventTimeFormat = Field(
        EventTimeFormat.ISO8601, description="How it is written. ISO 8601 without a zone is UTC; epochs may be strings."
    )
