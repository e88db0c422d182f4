"""`waybill ls`: the backup objects of a stream.

`waybill cat`: the messages of a backup object, as JSON lines.

`waybill uploads`: multipart uploads that nobody completed.
"""

from __future__ import annotations

import logging
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import IO, Any

import orjson
import pyarrow as pa

from waybill import names
from waybill.archive import chain
from waybill.archive.indexed_reader import SET_ASIDE, IndexedReader
from waybill.cli.render import Column, bytes_text, count, print_json, print_table, time_text
from waybill.cli.targets import open_coordinator, open_store
from waybill.config import Config, load_config
from waybill.config.values import parse_duration
from waybill.errors import ChainBroken, ConfigError, ConnectionMissing, CoordinationUnavailable
from waybill.ingest.orphaned_uploads import Belongs, abort_orphans, of_stream
from waybill.names import BackupName, Extension, TopicPartition
from waybill.records import decode as decoding
from waybill.records import framing
from waybill.store import PendingUpload, Store, StoredObject

__all__ = [
    "Entry",
    "abort_uploads",
    "bytes_document",
    "entries",
    "list_uploads",
    "messages",
    "run_cat",
    "run_ls",
    "stream_chains",
]

logger = logging.getLogger(__name__)

CommittedOffset = Callable[[TopicPartition], int | None]


@dataclass(frozen=True, slots=True)
class Entry:
    """A backup object and its range."""

    tp: TopicPartition
    key: str
    first_offset: int
    next_offset: int | None
    """None: the object is damaged, so that its end cannot be told."""
    size_bytes: int
    modified: datetime

    def document(self) -> dict[str, Any]:
        return {
            "topic": self.tp.topic,
            "partition": self.tp.partition,
            "key": self.key,
            "first_offset": self.first_offset,
            "next_offset": self.next_offset,
            "bytes": self.size_bytes,
            "modified": time_text(self.modified),
        }


def run_ls(stream: str, topic: str | None, *, as_json: bool) -> None:
    """Print them; see `waybill ls --help`."""
    config = load_config()
    wanted = _parse_target(topic)
    config.stream(stream)
    with ExitStack() as stack:
        store = stack.enter_context(open_store(config))
        committed = _committed_offsets(config, stream, stack)
        found = [
            entry
            for tp in stream_chains(config, stream, store)
            if wanted(tp)
            for entry in entries(store, config.stream(stream).generation, tp, committed)
        ]
    if as_json:
        print_json([entry.document() for entry in found])
        return
    columns = [
        Column("key"),
        Column("from", figure=True),
        Column("to", figure=True),
        Column("offsets", figure=True),
        Column("size", figure=True),
        Column("modified", figure=True),
    ]
    print_table(columns, (_cells(entry) for entry in found))
    total = bytes_text(sum(entry.size_bytes for entry in found))
    print(f"{len(found):,} objects, {total}", file=sys.stderr)


def _cells(entry: Entry) -> list[str]:
    end = entry.next_offset
    return [
        entry.key,
        str(entry.first_offset),
        "damaged" if end is None else str(end - 1),
        "-" if end is None else count(end - entry.first_offset),
        bytes_text(entry.size_bytes),
        time_text(entry.modified),
    ]


def _parse_target(target: str | None) -> Callable[[TopicPartition], bool]:
    """Which topic-partitions `TOPIC` or `TOPIC/PARTITION` means."""
    if target is None:
        return lambda _: True
    if "/" not in target:
        topic = names.check_topic(target)
        return lambda tp: tp.topic == topic
    try:
        wanted = TopicPartition.parse(target)
    except ValueError as error:
        raise ConfigError(f"{error}: give a topic (flights) or a topic-partition (flights/3)") from None
    return lambda tp: tp == wanted


def stream_chains(config: Config, name: str, store: Store) -> list[TopicPartition]:
    """The topic-partitions that have a chain in the stream's generation, sorted."""
    stream = config.stream(name)
    matching = (topic for topic in store.topics() if names.is_topic(topic) and stream.matches(topic))
    chains = (found for topic in matching for found in store.chains(topic))
    return sorted(found.tp for found in chains if found.generation == stream.generation)


def entries(store: Store, generation: int, tp: TopicPartition, committed: CommittedOffset) -> Iterator[Entry]:
    """The objects of a chain. Where the last one ends is said by the committed offset, or by its own last batch."""
    # Before the listing: it then shows every object that this offset counts.
    committed_offset = committed(tp)
    last: StoredObject | None = None
    for current in store.list_chain(tp.topic, generation, tp.partition):
        if last is not None:
            yield _entry(tp, last, current.name.first_offset)
        last = current
    if last is not None:
        known = committed_offset is not None and committed_offset > last.name.first_offset
        yield _entry(tp, last, committed_offset if known else _own_end(store, last))


def _own_end(store: Store, stored: StoredObject) -> int | None:
    try:
        return chain.next_offset(store, stored)
    except ChainBroken as error:
        logger.warning("%s", error)
        return None


def _entry(tp: TopicPartition, stored: StoredObject, next_offset: int | None) -> Entry:
    return Entry(tp, stored.key, stored.name.first_offset, next_offset, stored.size_bytes, stored.modified)


def _committed_offsets(config: Config, stream: str, stack: ExitStack) -> CommittedOffset:
    """Asks ZooKeeper; without it the last object of each chain is read instead, which takes longer."""
    try:
        coordinator = stack.enter_context(open_coordinator(config, stream))
    except (ConnectionMissing, CoordinationUnavailable) as error:
        logger.warning("%s. Reading the last object of each chain instead", error)
        return lambda _: None

    def committed_offset(tp: TopicPartition) -> int | None:
        found = coordinator.read_committed(tp)
        return found.committed_offset if found else None

    return committed_offset


_S3 = "s3://"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def run_cat(key: str, from_offset: int | None, to_offset: int | None, limit: int | None) -> None:
    """Print them; see `waybill cat --help`."""
    config = load_config()
    bucket, key = _split(key)
    first_offset = max(from_offset or 0, _first_offset(key))
    next_offset = None if to_offset is None else to_offset + 1
    with open_store(config, bucket) as store, ExitStack() as stack:
        found = _batches(store, key, first_offset, next_offset, stack)
        _write(sys.stdout.buffer, islice(messages(found), limit))


def _batches(
    store: Store, key: str, first_offset: int, next_offset: int | None, stack: ExitStack
) -> Iterator[pa.RecordBatch]:
    """The object's messages within the range; what it takes to read them stays open until the stack ends."""
    if _extension(key).is_indexed:
        reader = stack.enter_context(IndexedReader(store, key))
        return reader.messages(first_offset=first_offset, next_offset=next_offset)
    frames = framing.read_frames(stack.enter_context(store.open(key)), key)
    return decoding.decode(frames, where=key, first_offset=first_offset, next_offset=next_offset)


def _split(key: str) -> tuple[str | None, str]:
    """The bucket, if one is named, and the key."""
    if not key.startswith(_S3):
        return None, key
    bucket, _, rest = key.removeprefix(_S3).partition("/")
    if not bucket or not rest:
        raise ConfigError(f"{key!r} names no object: s3://bucket/key")
    return bucket, rest


def _first_offset(key: str) -> int:
    """A batch that straddles the start of an object's range is kept whole; messages before it are not the object's."""
    try:
        return BackupName.parse(key).first_offset
    except ValueError:
        return 0  # some other object of record batches, such as a copy


def _extension(key: str) -> Extension:
    try:
        return BackupName.parse(key).extension
    except ValueError:
        return Extension.KAFKA


def messages(batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    """Messages as JSON has them."""
    for batch in batches:
        # As integers: a producer can send a timestamp that is in no calendar.
        microseconds = batch.column("timestamp").cast(pa.int64())
        columns = [batch.column("offset"), microseconds, *(batch.column(c) for c in ("key", "value", "headers"))]
        aside = batch.column(SET_ASIDE) if SET_ASIDE in batch.schema.names else pa.nulls(batch.num_rows)
        for offset, timestamp, key, value, headers, why in zip(
            *(c.to_pylist() for c in [*columns, aside]), strict=True
        ):
            yield {
                "offset": offset,
                "timestamp": _timestamp(timestamp),
                "key": bytes_document(key),
                "value": bytes_document(value),
                "headers": [{"key": header["key"], "value": bytes_document(header["value"])} for header in headers],
                **({"set_aside": why} if why is not None else {}),
            }


def _timestamp(microseconds: int) -> str | int | None:
    """ISO 8601 to the millisecond; the number of milliseconds for what no calendar has; None for none."""
    if microseconds == decoding.NO_TIMESTAMP_US:
        return None
    try:
        moment = _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return microseconds // 1000
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def bytes_document(data: bytes | None) -> str | dict[str, str] | None:
    """Bytes in JSON: as text, or in base64 where they are no UTF-8."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode()}


def _write(out: IO[bytes], found: Iterator[dict[str, Any]]) -> None:
    for message in found:
        out.write(orjson.dumps(message, option=orjson.OPT_APPEND_NEWLINE))
    out.flush()


def list_uploads(stream: str | None, *, as_json: bool) -> None:
    """Print them; see `waybill uploads ls --help`."""
    config = load_config()
    belongs = _belonging(config, stream)
    with open_store(config) as store:
        found = [upload for upload in store.pending_uploads() if belongs(upload.chain)]
    if as_json:
        print_json([{"key": u.key, "upload_id": u.upload_id, "begun": time_text(u.begun)} | _chain(u) for u in found])
        return
    print_table(
        [Column("key"), Column("begun", figure=True), Column("upload id")],
        ([upload.key, time_text(upload.begun), upload.upload_id] for upload in found),
    )
    print(f"{len(found):,} uploads", file=sys.stderr)


def abort_uploads(stream: str | None, older_than: str | None) -> None:
    """Abort them; see `waybill uploads abort --help`."""
    config = load_config()
    belongs = _belonging(config, stream)
    try:
        age = config.storage.abort_uploads_after if older_than is None else parse_duration(older_than)
    except ValueError as error:
        raise ConfigError(f"--older-than {older_than}: {error}") from None
    with open_store(config) as store:
        aborted = abort_orphans(store, store.pending_uploads(), datetime.now(UTC) - age, belongs)
    for upload in aborted:
        print(f"aborted {upload.key}, begun {time_text(upload.begun)}")
    print(f"{len(aborted):,} uploads", file=sys.stderr)


def _belonging(config: Config, stream: str | None) -> Belongs:
    return (lambda _: True) if stream is None else of_stream(config, stream)


def _chain(upload: PendingUpload) -> dict[str, object]:
    chain = upload.chain
    return {"topic": chain.tp.topic, "partition": chain.tp.partition, "generation": chain.generation}
