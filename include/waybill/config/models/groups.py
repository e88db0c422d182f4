"""Groups of streams that share a DAG, and the keys with which a stream leaves its group."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from pydantic import Field, model_validator

from waybill.config.models.base import Matching, Section, section_error
from waybill.config.models.expressions import IsSchedule
from waybill.config.models.quantities import DurationBetween, WholeNumberBetween, format_duration
from waybill.config.names import Stage

DEFAULT_GROUP = "default"
OWN_DAG = "own"
"""The value of `group` for a stream that has a DAG of its own."""

GROUP_NAME = Matching(r"[a-z][a-z0-9_]{0,99}", "a lower-case letter, then up to 99 characters of [a-z0-9_]")
POOL_NAME = Matching(r"[A-Za-z0-9_.-]{1,250}", "1 to 250 characters of [A-Za-z0-9_.-]")

GroupName = Annotated[str, GROUP_NAME]
_Pool = Annotated[str, POOL_NAME]
_DEFAULT_POOL = "default_pool"

SparkTimeout = Annotated[timedelta, DurationBetween("1m", "30d")]
_SPARK_TIMEOUT = (
    "How long the Spark application may take. Then it is killed; a retry, or the next run, continues after what it has "
    "committed."
)
OWN_SPARK_TIMEOUT = f"For the stream's own DAG: {_SPARK_TIMEOUT[0].lower()}{_SPARK_TIMEOUT[1:]}"


class IngestGroup(Section):
    """The ingest DAG of the group."""

    schedule: Annotated[str, IsSchedule()] = Field("* * * * *", description="When the group's ingest runs, in UTC.")
    lanes: Annotated[int, WholeNumberBetween(1, 1024)] = Field(
        4,
        description="The most lanes of a run. A run with little to archive uses fewer, since each has a fixed cost.",
    )
    pool: _Pool = Field(_DEFAULT_POOL, description="The Airflow pool of its tasks.")


class PartitionGroup(Section):
    """The partition DAG of the group: one Spark application for all its streams."""

    schedule: Annotated[str, IsSchedule()] = Field("@hourly", description="When the group's DAG runs, in UTC.")
    parallel: Annotated[int, WholeNumberBetween(1, 64)] = Field(
        4, description="How many streams the Spark application works on at the same time."
    )
    timeout: SparkTimeout = Field(timedelta(hours=6), description=_SPARK_TIMEOUT)
    pool: _Pool = Field(_DEFAULT_POOL, description="The Airflow pool of its tasks.")


class DedupGroup(PartitionGroup):
    """The dedup DAG of the group: one Spark application for all its streams with `dedup`."""

    schedule: Annotated[str, IsSchedule()] = Field(
        "@hourly",
        description="When the group's DAG runs, in UTC, in addition to after each partition run of the group.",
    )


class MaintenanceGroup(PartitionGroup):
    """The maintenance DAG of the group: one Spark application for all its streams."""

    schedule: Annotated[str, IsSchedule()] = Field("@daily", description="When the group's DAG runs, in UTC.")
    timeout: SparkTimeout = Field(timedelta(hours=12), description=_SPARK_TIMEOUT)


class Group(Section):
    """The DAGs that the streams of a group share. A stream names its group with the key `group` of the same section."""

    ingest: IngestGroup = Field(IngestGroup(), description="The ingest DAG of the group.")
    partition: PartitionGroup = Field(PartitionGroup(), description="The partition DAG of the group.")
    dedup: DedupGroup = Field(DedupGroup(), description="The dedup DAG of the group.")
    maintenance: MaintenanceGroup = Field(MaintenanceGroup(), description="The maintenance DAG of the group.")

    def spark_job(self, stage: Stage) -> PartitionGroup:
        """Return the settings of the group's Spark application for a stage; ingest has none."""
        jobs = {Stage.PARTITION: self.partition, Stage.DEDUP: self.dedup, Stage.MAINTENANCE: self.maintenance}
        return jobs[stage]


def group_dag_id(stage: Stage, group: str) -> str:
    """Return the id of a group's DAG: `partition` for the default group, `partition_group__large` for another."""
    return str(stage) if group == DEFAULT_GROUP else f"{stage}_group__{group}"


def _defaults(section: type[Section], key: str) -> tuple[Any, ...]:
    """Return the default of a key, and the text that stands for it in YAML if it is a duration."""
    default = section.model_fields[key].default
    return (default, format_duration(default)) if isinstance(default, timedelta) else (default,)


class GroupedSection(Section):
    """A section of a stream whose job runs in the DAG of a group, or in a DAG of the stream's own."""

    group: GroupName = Field(
        DEFAULT_GROUP,
        description="The group whose DAG does this for the stream. `own`: a DAG of its own, named after the stream. "
        "A stream that sets `schedule`, `pool` or `timeout` has a DAG of its own, too.",
    )
    pool: _Pool | None = Field(None, description="The Airflow pool of the tasks of the stream's own DAG.")

    @model_validator(mode="before")
    @classmethod
    def _leave_group(cls, value: Any) -> Any:
        """Give a stream that sets the schedule, pool or timeout of its own DAG such a DAG. Refuse them in a group."""
        if not isinstance(value, dict):
            return value
        own = [key for key in ("schedule", "pool", "timeout") if key in value and key in cls.model_fields]
        if own and "group" not in value:
            return {**value, "group": OWN_DAG}
        # A config that was written out as JSON has every key, with its default.
        without_effect = [key for key in own if value[key] not in _defaults(cls, key)]
        if without_effect and value["group"] != OWN_DAG:
            raise section_error(
                without_effect[0],
                f"has no effect in the group {value['group']!r}: remove it, set it for the group (groups."
                f"{value['group']}), or set `group: {OWN_DAG}`",
            )
        return value

    def dag_id(self, stage: Stage, stream: str) -> str:
        """Return the id of the DAG that does `stage`, which this section describes, for the stream."""
        return f"{stage}__{stream}" if self.has_own_dag else group_dag_id(stage, self.group)

    @property
    def has_own_dag(self) -> bool:
        """Return whether the stream has a DAG of its own."""
        return self.group == OWN_DAG
