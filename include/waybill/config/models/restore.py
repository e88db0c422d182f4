"""Restores: how long a run may take, and the nightly rehearsal."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import ByteSize, Field

from waybill.config.models.base import Section
from waybill.config.models.expressions import IsSchedule
from waybill.config.models.quantities import DurationBetween, SizeBetween
from waybill.config.models.services import ConnectionId


class Rehearsal(Section):
    """The DAG `rehearse`: it restores a random range of the archive into a topic of its own, and compares it."""

    schedule: Annotated[str, IsSchedule()] | None = Field(
        "30 2 * * *", description="When it runs, in UTC. `null`: only when it is triggered by hand."
    )
    connection: ConnectionId = Field(
        "kafka_default",
        description="Airflow connection of the cluster to restore into. Its user needs the ACLs Create, Write, Read, "
        "AlterConfigs and Delete on topics whose names begin with `waybill-rehearsal-`.",
    )
    max_bytes: Annotated[ByteSize, SizeBetween("1KiB", "1TiB")] = Field(
        ByteSize(256 << 20),
        description="About how much of the archive it restores: whole backup objects, at least one.",
    )


class Restore(Section):
    """Restores of archived messages to Kafka."""

    timeout: Annotated[timedelta, DurationBetween("1m", "30d")] = Field(
        timedelta(hours=24),
        description="How long a task of the DAG `restore` may take. Then it ends as after SIGTERM, and a retry "
        "continues.",
    )
    rehearsal: Rehearsal = Field(Rehearsal(), description="The nightly rehearsal.")
