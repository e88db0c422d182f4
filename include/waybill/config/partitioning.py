"""Settings of the jobs that write and maintain a stream's tables, and of the alert about quarantined messages."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Annotated

from pydantic import ByteSize, Field

from waybill.config.base import Section
from waybill.config.expressions import IsSchedule
from waybill.config.quantities import DurationBetween, IsShare, SizeBetween, WholeNumberBetween

__all__ = ["Maintenance", "Partition", "QuarantineAlert"]


class Partition(Section):
    """The partition job: it turns the archive into rows of the table."""

    schedule: Annotated[str, IsSchedule()] = Field("@hourly", description="When `partition__<stream>` runs, in UTC.")
    task_bytes: Annotated[ByteSize, SizeBetween("1MiB", "16GiB")] = Field(
        ByteSize(256 << 20),
        description="The most bytes of backup objects that one Spark task reads. Tasks read less, down to 32 MiB, if "
        "more of them can run in parallel.",
    )
    run_bytes: Annotated[ByteSize, SizeBetween("1MiB", "16TiB")] = Field(
        ByteSize(64 << 30),
        description="The most bytes of backup objects that one commit covers. A job makes one commit after the other "
        "until the whole archive is covered.",
    )
    memory: Annotated[ByteSize, SizeBetween("16MiB", "64GiB")] = Field(
        ByteSize(256 << 20), description="How many bytes of rows a task keeps in memory before it writes them."
    )


class Maintenance(Section):
    """The maintenance job: it compacts small files, expires snapshots and removes leftovers."""

    schedule: Annotated[str, IsSchedule()] = Field("@daily", description="When `maintenance__<stream>` runs, in UTC.")
    target_file_bytes: Annotated[ByteSize, SizeBetween("1MiB", "16GiB")] = Field(
        ByteSize(256 << 20), description="The size of the files that compaction writes."
    )
    min_input_files: Annotated[int, WholeNumberBetween(2, 1_000_000)] = Field(
        5, description="How many small files a partition must have before it is compacted."
    )
    keep_snapshots: Annotated[timedelta, DurationBetween("1h", "3650d")] = Field(
        timedelta(days=5),
        description="How long a snapshot, and the files that only it references, are kept.",
    )
    keep_last: Annotated[int, WholeNumberBetween(1, 1_000_000)] = Field(
        10, description="How many of the latest snapshots are kept, however old they are."
    )
    orphans_after: Annotated[timedelta, DurationBetween("1d", "3650d")] = Field(
        timedelta(days=3),
        description="The age at which a file below the tables' locations that no snapshot references is removed. No "
        "partition run may take longer than this.",
    )
    leftovers_after: Annotated[timedelta, DurationBetween("1d", "3650d")] = Field(
        timedelta(days=7),
        description="The age at which plans that are committed, and index objects without a backup object, are "
        "removed.",
    )


class QuarantineAlert(Section):
    """When a partition run raises an alert about quarantined messages. The run commits its rows in any case."""

    max_rate: Annotated[Decimal, IsShare()] = Field(
        Decimal("0.1"),
        description="If a larger share of a run's messages goes to quarantine, the job (in Airflow, the task "
        "`check_quarantine`) fails after the rows are committed. `0%`: at the first message; `100%`: never.",
    )
    min_messages: Annotated[int, WholeNumberBetween(1, 1_000_000_000)] = Field(
        100, description="A run with fewer messages raises no alert, because a few of them are already a large share."
    )
