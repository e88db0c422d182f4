"""The root of the config: all of `streams.yaml`, and the check that no two streams write the same objects."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator
from pydantic_core import PydanticCustomError

from waybill.base.errors import ConfigError
from waybill.config import names
from waybill.config.models.airflow import Airflow
from waybill.config.models.alerts import Alerts, EmailChannel, SlackChannel
from waybill.config.models.base import Section, section_error
from waybill.config.models.groups import DEFAULT_GROUP, OWN_DAG, Group, GroupName, group_dag_id
from waybill.config.models.promises import PromiseSeverity
from waybill.config.models.replay import Replay
from waybill.config.models.restore import Restore
from waybill.config.models.schema_parsers import AvroParser
from waybill.config.models.services import Catalog, Kafka, Spark, Storage, ZooKeeper
from waybill.config.models.sink import check_sinks_apart
from waybill.config.models.stream import Stream, TopicRegex
from waybill.config.models.texts import IsStreamName
from waybill.config.names import Stage


def _check_version(value: Any) -> Any:
    if isinstance(value, bool):  # True == 1 in Python, so Literal[1] would accept it
        raise ValueError("must be 1")
    return value


class Config(Section):
    """All of `streams.yaml`."""

    version: Annotated[Literal[1], BeforeValidator(_check_version)] = Field(
        description="The version of this file's format."
    )
    storage: Storage = Field(description="Where the archive is stored.")
    kafka: Kafka = Field(Kafka(), description="Where the messages come from.")
    zookeeper: ZooKeeper = Field(ZooKeeper(), description="Where lanes are coordinated.")
    catalog: Catalog = Field(Catalog(), description="The catalog of the tables.")
    spark: Spark = Field(Spark(), description="Where Spark jobs run.")
    alerts: Alerts = Field(Alerts(), description="Where alerts about broken promises are sent.")
    airflow: Airflow = Field(Airflow(), description="How the watch asks Airflow, and Airflow's own deadline alerts.")
    restore: Restore = Field(Restore(), description="Restores to Kafka, and their rehearsal.")
    replay: Replay | None = Field(None, description="Requests for the messages of some keys between two times.")
    groups: dict[GroupName, Group] = Field(
        {}, description="Groups of streams that share DAGs, by name. A group that is not listed has the defaults."
    )
    streams: dict[Annotated[str, IsStreamName()], Stream] = Field(description="The streams, by name.", min_length=1)

    _broken: dict[str, str] = PrivateAttr(default_factory=dict)

    @property
    def broken(self) -> Mapping[str, str]:
        """Return the streams that `load_valid_streams` left out, and the errors of each."""
        return MappingProxyType(self._broken)

    def without_streams(self, broken: Mapping[str, str]) -> Self:
        """Return this config, which does not contain the streams `broken`, with the errors of each of them."""
        noted = self.model_copy()
        noted._broken = dict(broken)
        return noted

    @property
    def registries(self) -> tuple[str, ...]:
        """Return the connection ids of the schema registries that parsers use, each once."""
        parsers = [stream.parser for stream in self.streams.values()]
        found = [parser.registry for parser in parsers if isinstance(parser, AvroParser) and parser.registry]
        return tuple(dict.fromkeys(found))

    @property
    def kinesis_connections(self) -> tuple[str, ...]:
        """Return the connection ids of Kinesis that streams use, each once."""
        used = [stream.kinesis.connection for stream in self.streams.values() if stream.is_kinesis]
        return tuple(dict.fromkeys(used))

    @property
    def reads_kafka(self) -> bool:
        """Return whether a stream reads Kafka, or there is no stream yet."""
        return not self.streams or not all(stream.is_kinesis for stream in self.streams.values())

    def group(self, name: str) -> Group:
        """Return the settings of a group; the defaults for a group that the config does not list."""
        return self.groups.get(name) or Group()

    def streams_by_group(self, stage: Stage) -> dict[str, list[str]]:
        """Return the streams that share a DAG for a stage, by group, in the config's order. No group is empty."""
        groups: dict[str, list[str]] = {}
        for name, stream in self.streams.items():
            section = stream.section(stage)
            if section is not None and not section.has_own_dag:
                groups.setdefault(section.group, []).append(name)
        return groups

    def dag_ids(self) -> dict[str, str]:
        """Return the ids of the DAGs that do the scheduled work, each with its stream; '' for the DAG of a group."""
        found = {group_dag_id(Stage.INGEST, group): "" for group in self.ingest_groups()}
        for stage in Stage:
            found |= {group_dag_id(stage, group): "" for group in self.streams_by_group(stage)}
            for name, stream in self.streams.items():
                section = stream.section(stage)
                if section is not None and section.has_own_dag:
                    found[section.dag_id(stage, name)] = name
        return found

    def ingest_groups(self) -> dict[str, list[str]]:
        """Return the streams that share an ingest DAG, by group.

        Streams that could not be loaded are in the default group, which reports their errors.
        """
        groups = self.streams_by_group(Stage.INGEST)
        if self._broken:
            groups.setdefault(DEFAULT_GROUP, []).extend(self._broken)
        return groups

    @model_validator(mode="after")
    def _check_groups(self) -> Self:
        if OWN_DAG in self.groups:
            raise section_error(
                ("groups", OWN_DAG), f"{OWN_DAG!r} stands for a DAG of the stream's own: give the group another name"
            )
        return self

    @model_validator(mode="after")
    def _check_deadlines(self) -> Self:
        told = [self.alerts.channels[name] for name in self.alerts.route(PromiseSeverity.WARNING)]
        for key, deadline in (
            ("partition", self.airflow.deadlines.partition),
            ("backfill", self.airflow.deadlines.backfill),
        ):
            if deadline is not None and not any(isinstance(each, EmailChannel | SlackChannel) for each in told):
                raise section_error(
                    ("airflow", "deadlines", key),
                    "nobody is told: Airflow's deadline alerts go to the channels of alerts.warning of type email and "
                    "slack; add such a channel, or remove the deadline",
                )
        return self

    @model_validator(mode="after")
    def _check_overlaps(self) -> Self:
        """Raise an error if two streams would write the same chain, table or directory."""
        self._check_tables()
        check_sinks_apart({name: self.files_root(name) for name, s in self.streams.items() if s.sink.is_files})
        for (a, first), (b, second) in self._pairs_that_may_share_topics():
            _check_topics_apart(a, first, b, second)
        return self

    def _check_tables(self) -> None:
        owners: dict[str, str] = {}
        for name, stream in self.streams.items():
            for table in _tables_of(stream):
                owner = owners.setdefault(table, name)
                if owner == name:
                    continue
                if not _are_generations(self.streams[owner], stream):
                    raise _overlap(
                        (name, "table"),
                        f"streams {owner!r} and {name!r} would both write the table {table}: "
                        f"give one of them another table or generation",
                    )
                # PyIceberg writes all new files of a table with one partition spec.
                if self.streams[owner].partition_by != stream.partition_by:
                    raise _overlap(
                        (name, "partition_by"),
                        f"streams {owner!r} and {name!r} are generations of the table {table}, and must have the same "
                        f"partition_by while both run",
                    )

    def _pairs_that_may_share_topics(self) -> Iterator[tuple[tuple[str, Stream], tuple[str, Stream]]]:
        """Yield pairs of streams of one generation that list a common topic, or of which one has a pattern.

        Other pairs are skipped, since 200 streams have 20,000 pairs.
        """
        owners: dict[tuple[int, str], tuple[str, Stream]] = {}
        before: list[tuple[str, Stream]] = []
        patterns: list[tuple[str, Stream]] = []
        for name, stream in self.streams.items():
            item = name, stream
            is_pattern = isinstance(stream.topics, TopicRegex)
            rivals = before if is_pattern else patterns
            yield from ((rival, item) for rival in rivals if rival[1].generation == stream.generation)
            for topic in _listed_topics(stream):
                owner = owners.setdefault((stream.generation, topic), item)
                if owner is not item:
                    yield owner, item
            before.append(item)
            if is_pattern:
                patterns.append(item)

    def rival(self, name: str, topic: str) -> str | None:
        """Return another stream that archives the topic in the same generation, and so to the same chains; else None.

        Two patterns may match one topic. That can be checked only when the topic is known.
        """
        generation = self.stream(name).generation
        rivals = (
            other
            for other, stream in self.streams.items()
            if other != name and stream.generation == generation and stream.matches(topic)
        )
        return next(rivals, None)

    def files_root(self, name: str) -> str:
        """Return the prefix of the keys of all files of a stream with the sink `files`."""
        return self.stream(name).files_root(self.storage.prefix)

    def stream(self, name: str) -> Stream:
        """Return the stream with the name. Raise `ConfigError` with a list of the names if there is none."""
        try:
            return self.streams[name]
        except KeyError:
            if name in self._broken:
                raise ConfigError(self._broken[name]) from None
            near = difflib.get_close_matches(name, self.streams, n=1)
            meant = f"; did you mean {near[0]!r}? Known" if near else "; known"
            raise ConfigError(f"no stream {name!r}{meant} streams: {', '.join(sorted(self.streams))}") from None


def _are_generations(first: Stream, second: Stream) -> bool:
    """Return whether two streams are generations of one table: one is live, and the other is built beside it."""
    return first.table == second.table and first.generation != second.generation


def _tables_of(stream: Stream) -> list[str]:
    tables = [stream.table, names.quarantine_table_name(stream.table)]
    if stream.dedup is not None:
        tables += [names.unique_table_name(stream.table), names.duplicates_table_name(stream.table)]
    return tables


def _check_topics_apart(a: str, first: Stream, b: str, second: Stream) -> None:
    """Raise an error if the streams share a listed topic or a pattern.

    Different patterns can match the same topic too. This is checked when the topics are looked up in Kafka.
    """
    listed = _listed_topics(first) + _listed_topics(second)
    shared = next((topic for topic in listed if first.matches(topic) and second.matches(topic)), None)
    if shared is not None:
        topics = f"topic {shared!r}"
    elif isinstance(first.topics, TopicRegex) and first.topics == second.topics:
        topics = f"the topics of {first.topics.regex!r}"
    else:
        return
    raise _overlap(
        (b, "topics"),
        f"streams {a!r} and {b!r} both archive {topics} in generation {first.generation}: "
        f"remove it from one of them, or give one of them another generation",
    )


def _overlap(at: tuple[str, str], message: str) -> PydanticCustomError:
    return section_error(("streams", *at), message, kind="overlap")


def _listed_topics(stream: Stream) -> list[str]:
    return [] if isinstance(stream.topics, TopicRegex) else list(stream.topics)
