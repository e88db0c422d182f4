"""The report about lost messages: one row for each lost offset, as Parquet and as JSON lines."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from waybill.replay.republish.messages import LoggedMessage, read_archived_messages, read_new_messages
from waybill.replay.republish.truncations import Truncation
from waybill.services.kafka.kafka import KafkaSource
from waybill.services.store import Store


class Fate(StrEnum):
    """The state of a lost offset."""

    ARCHIVED = "archived"
    """The archive holds the message, so it can be published again."""
    UNKNOWN = "unknown"
    """The log had the offset, and nobody read it. It may also have been a control record or part of an aborted
    transaction."""


_TIME = pa.timestamp("ms", tz="UTC")
LOSS_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("fate", pa.string(), nullable=False),
        pa.field("leader_epoch", pa.int32()),
        pa.field("timestamp", _TIME),
        pa.field("key", pa.binary()),
        pa.field("value_bytes", pa.int64()),
        pa.field("object", pa.string()),
        pa.field("new_leader_epoch", pa.int32()),
        pa.field("new_timestamp", _TIME),
        pa.field("new_key", pa.binary()),
    ]
)
"""The schema of the report. `leader_epoch` to `object` are null for an unknown message, `new_*` where the log has no
message with the offset. `timestamp` and `new_timestamp` are Kafka's."""

_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class LossCounts:
    """The counts of lost offsets in a report."""

    archived: int = 0
    unknown: int = 0
    replaced: int = 0
    """Lost offsets at which the log now holds another message."""

    def with_row(self, row: Mapping[str, Any]) -> LossCounts:
        """Return the counts with a row of `LOSS_SCHEMA` added."""
        is_archived = row["fate"] == Fate.ARCHIVED
        return LossCounts(
            self.archived + is_archived, self.unknown + (not is_archived), self.replaced + ("new_leader_epoch" in row)
        )


def read_losses(store: Store, source: KafkaSource, truncation: Truncation) -> Iterator[dict[str, Any]]:
    """Yield a row of `LOSS_SCHEMA` for each lost message and each unknown offset, in order of offset.

    The messages that took the offsets are held in memory, without their values. Raises what `read_archived_messages`
    and `read_new_messages` raise.
    """
    tp = truncation.tp
    new = {
        each.record.offset: each._replace(record=each.record._replace(value=None, headers=[]))
        for each in read_new_messages(source, truncation)
    }
    for lost in read_archived_messages(store, truncation.generation, tp, truncation.archived):
        record = lost.record
        yield {
            "topic": tp.topic,
            "partition": tp.partition,
            "offset": record.offset,
            "fate": str(Fate.ARCHIVED),
            "leader_epoch": lost.leader_epoch,
            "timestamp": record.timestamp_ms,
            "key": record.key,
            "value_bytes": None if record.value is None else len(record.value),
            "object": lost.object_key,
            **_new_fields(new.get(record.offset)),
        }
    for offset in range(*truncation.unknown):
        yield {
            "topic": tp.topic,
            "partition": tp.partition,
            "offset": offset,
            "fate": str(Fate.UNKNOWN),
            **_new_fields(new.get(offset)),
        }


def _new_fields(message: LoggedMessage | None) -> dict[str, Any]:
    if message is None:
        return {}
    return {
        "new_leader_epoch": message.leader_epoch,
        "new_timestamp": message.record.timestamp_ms,
        "new_key": message.record.key,
    }


class LossFiles:
    """Writes `losses.parquet` and `losses.jsonl` into a directory. A context manager."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._lines = (directory / "losses.jsonl").open("w", encoding="utf-8")
        self._table = pq.ParquetWriter(directory / "losses.parquet", LOSS_SCHEMA)
        self._rows: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()
        self._table.close()
        self._lines.close()

    def add(self, row: dict[str, Any]) -> None:
        """Write a row of `LOSS_SCHEMA`. In JSON, keys are base64, and times are epoch ms."""
        self._rows.append(row)
        document = {
            name: b64encode(value).decode() if isinstance(value, bytes) else value for name, value in row.items()
        }
        self._lines.write(json.dumps(document) + "\n")
        if len(self._rows) == _ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            self._table.write_table(pa.Table.from_pylist(self._rows, LOSS_SCHEMA))
            self._rows.clear()
