"""How the archive is turned into the table."""

from __future__ import annotations

from typing import Annotated

from pydantic import ByteSize, Field

from waybill.config.model import Section
from waybill.config.values import IsSchedule, SizeBetween

__all__ = ["Partition"]


class Partition(Section):
    """How the archive is turned into the table."""

    schedule: Annotated[str, IsSchedule()] = Field("@hourly", description="When `partition__<stream>` runs, in UTC.")
    task_bytes: Annotated[ByteSize, SizeBetween("1MiB", "16GiB")] = Field(
        ByteSize(256 << 20), description="How many bytes of backup one Spark task takes."
    )
    memory: Annotated[ByteSize, SizeBetween("16MiB", "64GiB")] = Field(
        ByteSize(256 << 20), description="How many bytes of rows a task holds before it writes them out."
    )
