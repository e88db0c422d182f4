"""How the archive is turned into the table, and how the table is kept in shape.

When the quarantine of a run is more than a few odd messages.
"""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Any, ClassVar

from pydantic import ByteSize, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from waybill.config.model import Section
from waybill.config.values import DurationBetween, IsSchedule, Marker, SizeBetween, WholeNumberBetween

__all__ = ["IsShare", "Maintenance", "Partition", "QuarantineAlert"]


class Partition(Section):
    """How the archive is turned into the table."""

    schedule: Annotated[str, IsSchedule()] = Field("@hourly", description="When `partition__<stream>` runs, in UTC.")
    task_bytes: Annotated[ByteSize, SizeBetween("1MiB", "16GiB")] = Field(
        ByteSize(256 << 20),
        description="How many bytes of backup one Spark task takes: less, down to 32 MiB, where tasks can run side by "
        "side.",
    )
    run_bytes: Annotated[ByteSize, SizeBetween("1MiB", "16TiB")] = Field(
        ByteSize(64 << 30),
        description="How many bytes of backup one commit takes. A job goes on with the next commit until nothing is "
        "left.",
    )
    memory: Annotated[ByteSize, SizeBetween("16MiB", "64GiB")] = Field(
        ByteSize(256 << 20), description="How many bytes of rows a task holds before it writes them out."
    )


class Maintenance(Section):
    """How the stream's tables are kept in shape: small files, old snapshots, what nobody needs any more."""

    schedule: Annotated[str, IsSchedule()] = Field("@daily", description="When `maintenance__<stream>` runs, in UTC.")
    target_file_bytes: Annotated[ByteSize, SizeBetween("1MiB", "16GiB")] = Field(
        ByteSize(256 << 20), description="How large the files are that compaction makes of small ones."
    )
    min_input_files: Annotated[int, WholeNumberBetween(2, 1_000_000)] = Field(
        5, description="How many files of one partition there must be, smaller than they should be, for it to begin."
    )
    keep_snapshots: Annotated[timedelta, DurationBetween("1h", "3650d")] = Field(
        timedelta(days=5),
        description="How long a snapshot stays readable, and what it alone references stays there.",
    )
    keep_last: Annotated[int, WholeNumberBetween(1, 1_000_000)] = Field(
        10, description="How many of the latest snapshots stay, however old they are."
    )
    orphans_after: Annotated[timedelta, DurationBetween("1d", "3650d")] = Field(
        timedelta(days=3),
        description="How old a file below the tables' locations must be that nothing references for it to be removed. "
        "No partition run may take longer than this.",
    )
    leftovers_after: Annotated[timedelta, DurationBetween("1d", "3650d")] = Field(
        timedelta(days=7),
        description="How old plans that the table has passed, and index objects that no backup object names, must be "
        "to be removed.",
    )


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
