"""When the quarantine of a run is more than a few odd messages."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any, ClassVar

from pydantic import Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from waybill.config.model import Section
from waybill.config.values import Marker, WholeNumberBetween

__all__ = ["IsShare", "QuarantineAlert"]


class IsShare(Marker):
    """A part of a whole, as a `Decimal` from 0 to 1."""

    type_name = "share"
    allowed = "0% to 100%, as `1%` or `0.01`"
    json_type: ClassVar[Any] = ["string", "number"]
    percentage: ClassVar[re.Pattern[str]] = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?) *%")

    def parse(self, value: Any) -> Decimal:
        share = self._share(value)
        if share is None or not 0 <= share <= 1:
            raise ValueError("must be a share: 1% or 0.01 (1% is not 1: that would be all)")
        return share

    def _share(self, value: Any) -> Decimal | None:
        if isinstance(value, Decimal):
            return value
        if isinstance(value, str) and (match := self.percentage.fullmatch(value.strip())):
            return Decimal(match[1]) / 100
        # A bare 1 is as likely meant as 1 %.
        if isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool) and value == 0):
            share = Decimal(str(value))
            return share if share.is_finite() and share < 1 else None
        return None

    def format(self, value: Any) -> str:
        return f"{(value * 100).normalize():f}%"

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {
            "anyOf": [
                {"type": "string", "pattern": f"^{self.percentage.pattern}$"},
                {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
            ]
        }


class QuarantineAlert(Section):
    """When a partition run raises an alert about what it put into quarantine. The run commits all the same."""

    max_rate: Annotated[Decimal, IsShare()] = Field(
        Decimal("0.1"),
        description="More than this share of a run's messages in quarantine: its rows are committed, and then the "
        "job, or in Airflow the task `check_quarantine`, fails. `0%`: at the first one; `100%`: never.",
    )
    min_messages: Annotated[int, WholeNumberBetween(1, 1_000_000_000)] = Field(
        100, description="A run of fewer messages raises none: there, one is soon a large share."
    )
