"""Kinesis as the source of a stream: its section of the config, and what else of a stream it allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from waybill.config.models.base import Section, section_error
from waybill.config.models.enums import BackupFormat, SourceKind, StartPosition
from waybill.config.models.quantities import WholeNumberBetween
from waybill.config.models.services import ConnectionId
from waybill.config.models.texts import is_kinesis_arn

if TYPE_CHECKING:
    from waybill.config.models.stream import Stream

MAX_SLOTS = 4096


class Kinesis(Section):
    """How Kinesis is read, with `source: kinesis`."""

    connection: ConnectionId = Field("aws_default", description="Airflow connection of Kinesis (type `aws`).")
    slots: Annotated[int, WholeNumberBetween(1, MAX_SLOTS)] = Field(
        8,
        description="The number of topic-partitions that each Kinesis stream is archived as. More shards share them. "
        "It can be raised at any time.",
    )


def check_source(stream: Stream) -> None:
    """Raise `section_error` if a stream has settings that its source does not know."""
    if stream.source is SourceKind.KAFKA:
        _check_kafka(stream)
    else:
        _check_kinesis(stream)


def _check_kafka(stream: Stream) -> None:
    if stream.kinesis != Kinesis():
        raise section_error("kinesis", "has no effect on a stream of Kafka: remove it, or set `source: kinesis`")
    if stream.start is StartPosition.TRIM_HORIZON:
        raise section_error("start", "trim_horizon is Kinesis' name: write `earliest`, or set `source: kinesis`")
    for topic in stream.topics if isinstance(stream.topics, tuple) else ():
        if is_kinesis_arn(topic):
            raise section_error("topics", f"{topic!r} is a stream of Kinesis: set `source: kinesis`")


def _check_kinesis(stream: Stream) -> None:
    if stream.format.name is not BackupFormat.KAFKA:
        raise section_error(
            "format", f"must be kafka with `source: kinesis`: the format {stream.format.name} cannot hold checkpoints"
        )
    for key in ("recompress", "isolation_level", "key_partitioner"):
        if getattr(stream, key) != type(stream).model_fields[key].default:
            raise section_error(key, "has no effect with `source: kinesis`: remove it")
    if stream.ingest.consumer_group is not None:
        raise section_error(
            ("ingest", "consumer_group"),
            "has no effect with `source: kinesis`, which has no consumer groups: remove it",
        )
    names = stream.listed_topics
    for name in names:
        if names.count(name) > 1:
            raise section_error("topics", f"names the Kinesis stream {name!r} twice: each at most once")
