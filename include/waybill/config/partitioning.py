"""How the archive is turned into the table, and how the table is kept in shape."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import ByteSize, Field

from waybill.config.model import Section
from waybill.config.values import DurationBetween, IsSchedule, SizeBetween, WholeNumberBetween

__all__ = ["Maintenance", "Partition"]


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
