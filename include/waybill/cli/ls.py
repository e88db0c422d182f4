"""`waybill ls`: the backup objects of a stream."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from waybill import chain, names
from waybill.cli.render import Column, bytes_text, count, print_json, print_table, time_text
from waybill.cli.services import open_coordinator, open_store
from waybill.config import Config, load_config
from waybill.errors import ChainBroken, ConfigError, ConnectionMissing, CoordinationUnavailable
from waybill.names import TopicPartition
from waybill.store import Store, StoredObject

__all__ = ["Entry", "entries", "run", "stream_chains"]

log = logging.getLogger(__name__)

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


def run(stream: str, topic: str | None, *, as_json: bool) -> None:
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
        log.warning("%s", error)
        return None


def _entry(tp: TopicPartition, stored: StoredObject, next_offset: int | None) -> Entry:
    return Entry(tp, stored.key, stored.name.first_offset, next_offset, stored.size_bytes, stored.modified)


def _committed_offsets(config: Config, stream: str, stack: ExitStack) -> CommittedOffset:
    """Asks ZooKeeper; without it the last object of each chain is read instead, which takes longer."""
    try:
        coordinator = stack.enter_context(open_coordinator(config, stream))
    except (ConnectionMissing, CoordinationUnavailable) as error:
        log.warning("%s. Reading the last object of each chain instead", error)
        return lambda _: None

    def committed_offset(tp: TopicPartition) -> int | None:
        found = coordinator.read_committed(tp)
        return found.committed_offset if found else None

    return committed_offset
