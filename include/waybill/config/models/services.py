"""Connection ids and settings of the services that Waybill uses: S3, Kafka, ZooKeeper, the catalog, Spark."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import Field

from waybill.config.models.base import Matching, Section
from waybill.config.models.groups import SparkTimeout
from waybill.config.models.kafka_promises import KafkaPromises
from waybill.config.models.kafka_topics import DeclaredTopic
from waybill.config.models.quantities import DurationBetween
from waybill.config.models.texts import CONNECTION_ID, IsTopic

ConnectionId = Annotated[str, CONNECTION_ID]

BUCKET = Matching(
    r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]",
    "3 to 63 characters of [a-z0-9.-] that start and end with a letter or digit, without '..', and no IP address",
    refused=r"\.\.|^[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+$",
)
PREFIX = Matching(
    r"(?:[A-Za-z0-9!_.*'()=-]+(?:/[A-Za-z0-9!_.*'()=-]+)*){0,1}",
    "up to 400 characters: segments of [A-Za-z0-9!_.*'()=-], none of them '.' or '..', joined by single slashes",
    refused=r"(?:^|/)\.\.?(?:/|$)|^.{401}",
)
ZK_ROOT = Matching(
    r"(?!zookeeper(?:/|$))[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)*",
    "segments of [A-Za-z0-9_.-], none of them '.' or '..', joined by single slashes; "
    "not 'zookeeper', which ZooKeeper reserves",
    refused=r"(?:^|/)\.\.?(?:/|$)",
)


class Storage(Section):
    """Where the archive is stored."""

    connection: ConnectionId = Field("aws_default", description="Airflow connection of S3 (type `aws`).")
    bucket: Annotated[str, BUCKET] = Field(description="The bucket. It must exist.")
    prefix: Annotated[str, PREFIX] = Field("", description="The prefix of every object key.")
    abort_uploads_after: Annotated[timedelta, DurationBetween("2h", "90d")] = Field(
        timedelta(days=1),
        description="The age at which an incomplete multipart upload of a backup object is aborted. A lane that was "
        "killed leaves such uploads.",
    )


class Kafka(Section):
    """Where the messages come from."""

    connection: ConnectionId = Field("kafka_default", description="Airflow connection of Kafka (type `kafka`).")
    topics: dict[Annotated[str, IsTopic()], DeclaredTopic] = Field(
        {},
        description="Topics as they are to be, by name: `waybill kafka plan` compares, `waybill kafka apply` changes.",
    )
    promises: KafkaPromises = Field(KafkaPromises(), description="What the watch checks of the Kafka cluster.")


class ZooKeeper(Section):
    """Where lanes are coordinated."""

    connection: ConnectionId = Field("zookeeper_default", description="Airflow connection of ZooKeeper.")
    root: Annotated[str, ZK_ROOT] = Field(
        "waybill", description="The node below which Waybill writes (below the connection's chroot)."
    )
    session_timeout: Annotated[timedelta, DurationBetween("2s", "5m")] = Field(
        timedelta(seconds=10), description="How long a lane that died keeps its locks."
    )


class Catalog(Section):
    """Where the tables are registered."""

    connection: ConnectionId = Field("iceberg_default", description="Airflow connection of the Iceberg catalog.")


class Spark(Section):
    """Where Spark jobs run."""

    connection: ConnectionId = Field(
        "spark_default", description="Airflow connection of Spark: `local[2]`, `spark://…`, `yarn`, `k8s://…`."
    )
    backfill_timeout: SparkTimeout = Field(
        timedelta(hours=24),
        description="How long the Spark application of a backfill may take. Then it is killed, and a retry continues "
        "with the tasks that are not done.",
    )
