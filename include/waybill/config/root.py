"""The whole of `streams.yaml`, and that its streams leave each other alone."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from waybill import names
from waybill.config.model import Section, misfit
from waybill.config.schema_parsers import AvroParser
from waybill.config.services import Catalog, Kafka, Spark, Storage, ZooKeeper
from waybill.config.sink import check_sinks_apart
from waybill.config.stream import Stream, TopicRegex
from waybill.config.values import IsStreamName
from waybill.errors import ConfigError

__all__ = ["Config"]


def _check_version(value: Any) -> Any:
    if isinstance(value, bool):  # for Python, True is 1
        raise ValueError("must be 1")
    return value


class Config(Section):
    """The whole of `streams.yaml`."""

    version: Annotated[Literal[1], BeforeValidator(_check_version)] = Field(
        description="The version of this file's format."
    )
    storage: Storage = Field(description="Where the archive is.")
    kafka: Kafka = Field(Kafka(), description="Where the messages come from.")
    zookeeper: ZooKeeper = Field(ZooKeeper(), description="Where lanes are coordinated.")
    catalog: Catalog = Field(Catalog(), description="Where the tables are registered.")
    spark: Spark = Field(Spark(), description="Where Spark jobs run.")
    streams: dict[Annotated[str, IsStreamName()], Stream] = Field(description="The streams, by name.", min_length=1)

    @property
    def registries(self) -> tuple[str, ...]:
        """The connections of the schema registries that parsers ask."""
        parsers = [stream.parser for stream in self.streams.values()]
        found = [parser.registry for parser in parsers if isinstance(parser, AvroParser) and parser.registry]
        return tuple(dict.fromkeys(found))

    @model_validator(mode="after")
    def _check_overlaps(self) -> Self:
        """Two streams must not write one chain or one table: refused here rather than found in the data."""
        self._check_tables()
        check_sinks_apart({name: self.files_root(name) for name, s in self.streams.items() if s.sink.is_files})
        for (a, first), (b, second) in self._pairs():
            if first.generation == second.generation:
                _check_topics_apart(a, first, b, second)
        return self

    def _check_tables(self) -> None:
        owners: dict[str, str] = {}
        for name, stream in self.streams.items():
            for table in _tables_of(stream):
                owner = owners.setdefault(table, name)
                if owner != name:
                    raise _overlap(
                        (name, "table"),
                        f"streams {owner!r} and {name!r} would both write the table {table}: "
                        f"give one of them another table or generation",
                    )

    def _pairs(self) -> Iterator[tuple[tuple[str, Stream], tuple[str, Stream]]]:
        items = list(self.streams.items())
        for i, a in enumerate(items):
            for b in items[i + 1 :]:
                yield a, b

    def rival(self, name: str, topic: str) -> str | None:
        """Another stream that archives the topic in the same generation, into the same chains; None: there is none.

        Two patterns may match one topic, which nobody can tell before there is such a topic.
        """
        generation = self.stream(name).generation
        rivals = (
            other
            for other, stream in self.streams.items()
            if other != name and stream.generation == generation and stream.matches(topic)
        )
        return next(rivals, None)

    def files_root(self, name: str) -> str:
        """What the keys of all files of a stream's `files` sink start with."""
        stream = self.stream(name)
        return stream.sink.root(self.storage.prefix, names.table_name(stream.table, stream.generation))

    def stream(self, name: str) -> Stream:
        """The stream of that name. Raises `ConfigError` that lists the names there are."""
        try:
            return self.streams[name]
        except KeyError:
            near = difflib.get_close_matches(name, self.streams, n=1)
            meant = f"; did you mean {near[0]!r}? There" if near else "; there"
            raise ConfigError(f"no stream {name!r}{meant} are: {', '.join(sorted(self.streams))}") from None


def _tables_of(stream: Stream) -> list[str]:
    own = [names.table_name, names.quarantine_table_name]
    if stream.dedup is not None:
        own += [names.unique_table_name, names.duplicates_table_name]
    return [name_of(stream.table, stream.generation) for name_of in own]


def _check_topics_apart(a: str, first: Stream, b: str, second: Stream) -> None:
    """Whether two patterns can match one topic is found when topics are looked up; the rest can be told here."""
    shared = next((t for t in _literal(first) + _literal(second) if first.matches(t) and second.matches(t)), None)
    if shared is not None:
        what = f"topic {shared!r}"
    elif isinstance(first.topics, TopicRegex) and first.topics == second.topics:
        what = f"the topics of {first.topics.regex!r}"
    else:
        return
    raise _overlap(
        (b, "topics"),
        f"streams {a!r} and {b!r} both archive {what} in generation {first.generation}: "
        f"leave it to one of them, or give one another generation",
    )


def _overlap(at: tuple[str, str], message: str) -> PydanticCustomError:
    return misfit(("streams", *at), message, kind="overlap")


def _literal(stream: Stream) -> list[str]:
    return [] if isinstance(stream.topics, TopicRegex) else list(stream.topics)
