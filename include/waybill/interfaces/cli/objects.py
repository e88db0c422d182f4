"""Commands about S3 objects: `waybill ls` lists backup objects, `cat` prints their messages, `uploads` lists and
aborts multipart uploads that are not completed.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import IO, Any

import orjson
import pyarrow as pa

from waybill.archive.chain.object_reader import inspect_object, read_messages, read_next_offset
from waybill.archive.ingest.orphaned_uploads import IsWanted, abort_old_uploads, belongs_to_stream
from waybill.base.errors import ChainBroken, ConfigError, ConnectionMissing, CoordinationUnavailable
from waybill.config import names
from waybill.config.models import Config
from waybill.config.models.quantities import counted, parse_duration
from waybill.config.names import BackupName, TopicPartition
from waybill.interfaces.cli.render import (
    Output,
    PrintedColumn,
    TableColumn,
    bytes_document,
    bytes_text,
    count,
    print_json,
    print_rows,
    print_table,
    time_text,
    time_text_ms,
)
from waybill.interfaces.cli.targets import archived_topic_partitions, load_streams, open_coordinator, open_store
from waybill.records.batches.limits import SET_ASIDE
from waybill.records.batches.message_rows import NO_TIMESTAMP_US
from waybill.records.shards.checkpoint_batch import CoveredShard
from waybill.services.store import PendingUpload, Store, StoredObject

logger = logging.getLogger(__name__)

_S3_SCHEME = "s3://"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_Covered = Mapping[str, CoveredShard]
_ReadCommitted = Callable[[TopicPartition], int | None]


# --- ls ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ListedObject:
    """A backup object and its range of offsets."""

    tp: TopicPartition
    key: str
    first_offset: int
    next_offset: int | None
    """None if the object is damaged, so that its end is unknown."""
    size_bytes: int
    modified: datetime

    @classmethod
    def of(cls, tp: TopicPartition, stored: StoredObject, next_offset: int | None) -> _ListedObject:
        return cls(tp, stored.key, stored.name.first_offset, next_offset, stored.size_bytes, stored.modified)

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

    def cells(self) -> list[str]:
        end = self.next_offset
        return [
            self.key,
            str(self.first_offset),
            "damaged" if end is None else str(end - 1),
            "-" if end is None else count(end - self.first_offset),
            bytes_text(self.size_bytes),
            time_text(self.modified),
        ]


def run_ls(stream: str, topic: str | None, *, shards: bool, as_json: bool) -> None:
    """Print the backup objects of a stream; see `waybill ls --help`."""
    config = load_streams()
    if shards and not config.stream(stream).is_kinesis:
        raise ConfigError(f"stream {stream!r} is read from Kafka, which has no shards: leave out --shards")
    is_wanted = _parse_target(topic)
    generation = config.stream(stream).generation
    with ExitStack() as stack:
        store = stack.enter_context(open_store(config))
        read_committed = _committed_offset_reader(config, stream, stack)
        objects = [
            listed
            for tp in archived_topic_partitions(config, stream, store)
            if is_wanted(tp)
            for listed in _list_objects(store, generation, tp, read_committed)
        ]
        covered = [_read_covered(store, listed.key) for listed in objects] if shards else None
    if as_json:
        print_json([listed.document() for listed in objects] if covered is None else _with_shards(objects, covered))
        return
    if covered is None:
        _print_objects(objects)
    else:
        _print_shards(objects, covered)
    total = bytes_text(sum(listed.size_bytes for listed in objects))
    print(f"{counted(len(objects), 'object')}, {total}", file=sys.stderr)


def _print_objects(objects: Iterable[_ListedObject]) -> None:
    columns = [
        PrintedColumn("key"),
        PrintedColumn("from", figure=True),
        PrintedColumn("to", figure=True),
        PrintedColumn("offsets", figure=True),
        PrintedColumn("size", figure=True),
        PrintedColumn("modified", figure=True),
    ]
    print_table(columns, (listed.cells() for listed in objects))


def _print_shards(objects: Iterable[_ListedObject], covered: Iterable[_Covered]) -> None:
    columns = [
        PrintedColumn("key"),
        PrintedColumn("from", figure=True),
        PrintedColumn("to", figure=True),
        PrintedColumn("shard"),
        PrintedColumn("behind sequence number", figure=True),
        PrintedColumn("up to", figure=True),
    ]
    rows = [
        [*listed.cells()[:3], shard_id, each.after_sequence or "its start", each.last_sequence or "no record"]
        for listed, of_object in zip(objects, covered, strict=True)
        for shard_id, each in sorted(of_object.items())
    ]
    print_table(columns, rows)


def _with_shards(objects: Iterable[_ListedObject], covered: Iterable[_Covered]) -> list[dict[str, Any]]:
    return [
        {
            **listed.document(),
            "shards": {
                shard_id: {"after_sequence": each.after_sequence, "last_sequence": each.last_sequence}
                for shard_id, each in sorted(of_object.items())
            },
        }
        for listed, of_object in zip(objects, covered, strict=True)
    ]


def _read_covered(store: Store, key: str) -> _Covered:
    """Return the range that an object of a slot covers, by shard. A damaged object is logged, and covers nothing."""
    try:
        summary = inspect_object(store, BackupName.parse(key), key)
    except ChainBroken as error:
        logger.warning("%s", error)
        return {}
    return {} if summary.slot_state is None else summary.slot_state.covered


def _parse_target(target: str | None) -> Callable[[TopicPartition], bool]:
    """Return whether a topic-partition matches `TOPIC` or `TOPIC/PARTITION`; every one matches None."""
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


def _committed_offset_reader(config: Config, stream: str, stack: ExitStack) -> _ReadCommitted:
    """Return a function that reads committed offsets from ZooKeeper.

    Without ZooKeeper the function returns None for every topic-partition; then the last object of each chain has to be
    read, which takes longer.
    """
    try:
        coordinator = stack.enter_context(open_coordinator(config, stream))
    except (ConnectionMissing, CoordinationUnavailable) as error:
        logger.warning("%s. Reading the last object of each chain instead", error)
        return lambda _: None

    def read_committed(tp: TopicPartition) -> int | None:
        committed = coordinator.read_committed(tp)
        return committed.committed_offset if committed else None

    return read_committed


def _list_objects(
    store: Store, generation: int, tp: TopicPartition, read_committed: _ReadCommitted
) -> Iterator[_ListedObject]:
    """Yield the objects of a chain.

    An object ends where the next one starts. The last object ends at the committed offset, or where its last record
    batch ends.
    """
    # Read before the listing: the listing then contains every object below this offset.
    committed_offset = read_committed(tp)
    last: StoredObject | None = None
    for current in store.list_chain(tp.topic, generation, tp.partition):
        if last is not None:
            yield _ListedObject.of(tp, last, current.name.first_offset)
        last = current
    if last is not None:
        is_committed = committed_offset is not None and committed_offset > last.name.first_offset
        yield _ListedObject.of(tp, last, committed_offset if is_committed else _read_end(store, last))


def _read_end(store: Store, stored: StoredObject) -> int | None:
    try:
        return read_next_offset(store, stored)
    except ChainBroken as error:
        logger.warning("%s", error)
        return None


# --- cat --------------------------------------------------------------------------------------------------------------


def run_cat(key: str, from_offset: int | None, to_offset: int | None, limit: int | None) -> None:
    """Print the messages of a backup object as JSON lines; see `waybill cat --help`."""
    config = load_streams()
    bucket, key = _split_key(key)
    first_offset = max(from_offset or 0, _first_offset(key))
    next_offset = None if to_offset is None else to_offset + 1
    with open_store(config, bucket) as store:
        batches = read_messages(store, key, first_offset=first_offset, next_offset=next_offset)
        with closing(batches):
            _write_lines(sys.stdout.buffer, islice(message_documents(batches), limit))


def _split_key(key: str) -> tuple[str | None, str]:
    """Return the bucket, or None if the argument is an object key alone, and the object key."""
    if not key.startswith(_S3_SCHEME):
        return None, key
    bucket, _, rest = key.removeprefix(_S3_SCHEME).partition("/")
    if not bucket or not rest:
        raise ConfigError(f"{key!r} names no object: s3://bucket/key")
    return bucket, rest


def _first_offset(key: str) -> int:
    """Return the first offset of a backup object by its name; 0 for another object, such as a renamed copy.

    The first record batch of an object is stored whole even if it starts before the object's range; the messages before
    the range belong to the previous object.
    """
    try:
        return BackupName.parse(key).first_offset
    except ValueError:
        return 0


def message_documents(batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    """Yield each message as a JSON object."""
    for batch in batches:
        # As integers: a producer can send a timestamp that `datetime` cannot represent.
        microseconds = batch.column("timestamp").cast(pa.int64())
        columns = [batch.column("offset"), microseconds, *(batch.column(c) for c in ("key", "value", "headers"))]
        aside = batch.column(SET_ASIDE) if SET_ASIDE in batch.schema.names else pa.nulls(batch.num_rows)
        for offset, timestamp, key, value, headers, why_aside in zip(
            *(c.to_pylist() for c in [*columns, aside]), strict=True
        ):
            yield {
                "offset": offset,
                "timestamp": _timestamp_document(timestamp),
                "key": bytes_document(key),
                "value": bytes_document(value),
                "headers": [{"key": header["key"], "value": bytes_document(header["value"])} for header in headers],
                **({"set_aside": why_aside} if why_aside is not None else {}),
            }


def _timestamp_document(microseconds: int) -> str | int | None:
    """Return ISO 8601 in milliseconds, epoch ms if `datetime` cannot represent the time, None for no timestamp."""
    if microseconds == NO_TIMESTAMP_US:
        return None
    try:
        return time_text_ms(_EPOCH + timedelta(microseconds=microseconds))
    except OverflowError:
        return microseconds // 1000


def _write_lines(out: IO[bytes], documents: Iterator[dict[str, Any]]) -> None:
    for document in documents:
        out.write(orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE))
    out.flush()


# --- uploads ----------------------------------------------------------------------------------------------------------


def list_uploads(stream: str | None, *, as_json: bool) -> None:
    """Print the uploads that are not completed; see `waybill uploads ls --help`."""
    config = load_streams()
    is_wanted = _upload_filter(config, stream)
    with open_store(config) as store:
        uploads = [upload for upload in store.pending_uploads() if is_wanted(upload.chain)]
    Output(as_json).show(uploads, _print_uploads, lambda found: [_upload_document(each) for each in found])


_UPLOADS: tuple[TableColumn[PendingUpload], ...] = (
    TableColumn("key", lambda each: each.key),
    TableColumn("begun", lambda each: time_text(each.begun), figure=True),
    TableColumn("upload id", lambda each: each.upload_id),
)


def _print_uploads(uploads: Sequence[PendingUpload]) -> None:
    print_rows(_UPLOADS, uploads)
    print(counted(len(uploads), "upload"), file=sys.stderr)


def abort_uploads(stream: str | None, older_than: str | None) -> None:
    """Abort the uploads that are older than a duration, and print them; see `waybill uploads abort --help`."""
    config = load_streams()
    is_wanted = _upload_filter(config, stream)
    try:
        age = config.storage.abort_uploads_after if older_than is None else parse_duration(older_than)
    except ValueError as error:
        raise ConfigError(f"--older-than {older_than}: {error}") from None
    with open_store(config) as store:
        aborted = abort_old_uploads(store, store.pending_uploads(), datetime.now(UTC) - age, is_wanted)
    for upload in aborted:
        print(f"aborted {upload.key}, begun {time_text(upload.begun)}")
    print(counted(len(aborted), "upload"), file=sys.stderr)


def _upload_filter(config: Config, stream: str | None) -> IsWanted:
    return (lambda _: True) if stream is None else belongs_to_stream(config, stream)


def _upload_document(upload: PendingUpload) -> dict[str, Any]:
    return {
        "key": upload.key,
        "upload_id": upload.upload_id,
        "begun": time_text(upload.begun),
        "topic": upload.chain.tp.topic,
        "partition": upload.chain.tp.partition,
        "generation": upload.chain.generation,
    }
