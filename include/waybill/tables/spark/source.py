"""The data source `waybill_backup`: the archive of a stream as a DataFrame, before any parsing.

    from waybill.tables.spark.source import WaybillBackup
    spark.dataSource.register(WaybillBackup)
    spark.read.format("waybill_backup").option("stream", "flights").load()

Columns: topic, partition, offset, kafka_timestamp, key, headers, value. It reads in the same way as the partition job:
the same chains, checks and decoder. Options:

- `stream`: the stream's name. Required.
- `config`: path of the YAML file; default: `WAYBILL_CONFIG`, as for the `waybill` command.
- `from`, `to`: JSON such as `{"flights/0": 1000}`: the first offset to read (inclusive), and where to end (exclusive).
  A topic-partition that is not in it is read from its chain's first object to its last.

A broken chain raises `ChainBroken`: a DataFrame with missing offsets would look like a complete one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from waybill.archive.chain.span import Span
from waybill.archive.chain.spans import read_span, spans_from
from waybill.base.errors import ChainBroken, ConfigError
from waybill.config.models import Storage, load_config
from waybill.config.names import TopicPartition
from waybill.services.store import Store
from waybill.tables.partition.partition_plan import Task, list_chains, pack
from waybill.tables.staging.services import services_of

_SCHEMA = (
    "topic string not null, partition int not null, offset bigint not null, kafka_timestamp timestamp, key binary, "
    "headers array<struct<key: string, value: binary>> not null, value binary"
)
_OPTIONS = frozenset({"stream", "config", "from", "to", "path"})


class WaybillBackup(DataSource):
    """The data source, for `spark.dataSource.register`. See the module's docstring."""

    @classmethod
    def name(cls) -> str:
        return "waybill_backup"

    def schema(self) -> str:
        return _SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        unknown = sorted(set(self.options) - _OPTIONS)
        if unknown:
            raise ConfigError(f"waybill_backup has no option {unknown[0]!r}; its options: stream, config, from, to")
        if "stream" not in self.options:
            raise ConfigError('waybill_backup needs the name of a stream: .option("stream", "…")')
        path = self.options.get("config")
        return _BackupReader(
            self.options["stream"],
            Path(path) if path else None,
            _parse_offsets("from", self.options.get("from")),
            _parse_offsets("to", self.options.get("to")),
        )


@dataclass(frozen=True)
class _TaskPartition(InputPartition):
    storage: Storage
    spans: Task


class _BackupReader(DataSourceReader):
    def __init__(
        self, stream: str, config: Path | None, first: dict[TopicPartition, int], end: dict[TopicPartition, int]
    ) -> None:
        self._stream = stream
        self._config = config
        self._first = first
        self._end = end

    def partitions(self) -> Sequence[InputPartition]:
        config = load_config(self._config)
        stream = config.stream(self._stream)
        with services_of(config) as services:
            committed = services.committed_offsets(self._stream)
            topics = services.archived_topics(stream)
            chains, faults = list_chains(services.store, topics, stream.generation, self._first, committed)
        if faults:
            raise ChainBroken("; ".join(faults))
        spans = {tp: self._clip_end(spans_from(tp, objects, self._first.get(tp))) for tp, objects in chains.items()}
        return [_TaskPartition(config.storage, task) for task in pack(spans, stream.partition.task_bytes)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Imported here: Spark also starts a process for each step of planning, which does not need it.
        from waybill.tables.partition.rows import archive_rows

        assert isinstance(partition, _TaskPartition)
        with Store.of(partition.storage) as store:
            for span in partition.spans:
                for messages in read_span(store, span, in_part=True):
                    yield archive_rows(span.tp, messages)

    def _clip_end(self, spans: Iterator[Span]) -> list[Span]:
        clipped = [
            replace(span, next_offset=min(span.next_offset, self._end.get(span.tp, span.next_offset))) for span in spans
        ]
        return [span for span in clipped if span.first_offset < span.next_offset]


def _parse_offsets(option: str, text: str | None) -> dict[TopicPartition, int]:
    try:
        return {TopicPartition.parse(tp): int(offset) for tp, offset in json.loads(text or "{}").items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(
            f'option {option!r} of waybill_backup is {text!r}: give offsets as {{"topic/partition": offset}}'
        ) from error
