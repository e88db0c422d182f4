"""A Kafka log for the model check: real record batches, and the double of `Cluster` below the real `KafkaSource`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from kafka import errors as kafka_errors
from model_lanes import lane

from waybill.base.errors import KafkaUnavailable
from waybill.config.names import TopicPartition
from waybill.records.batches.encode import Record, control_batch, encode_batch
from waybill.records.batches.framing import ControlType, read_header
from waybill.services.kafka.cluster import Leader, Topic

TOPIC = "t"
TOPIC_ID = "00000000-0000-0000-0000-00000000abcd"
_BATCH_MESSAGES = 2
_VALUE_BYTES = 300
_EARLIEST = -2
_ABORTED_PRODUCER, _COMMITTED_PRODUCER = 7, 8


@dataclass
class Log:
    """One topic-partition's log, described by a word: each letter becomes visible at one time.

    `d` is two messages; `c` a committed transaction of two; `a` an aborted transaction of two; `i` an aborted
    transaction of four with two other messages in between; `h` three missing offsets, as compaction leaves them, then
    two messages.
    """

    word: str
    batches: list[bytes] = field(default_factory=list)
    messages: dict[bytes, tuple[int, ...]] = field(default_factory=dict)
    """The offsets of the messages of each data batch, by the batch's bytes."""
    wanted: list[int] = field(default_factory=list)
    """The offsets of all messages that belong into the archive."""
    missing: list[int] = field(default_factory=list)
    """The offsets that compaction has removed."""
    aborted: list[tuple[int, int]] = field(default_factory=list)
    """The first offset of each aborted transaction, and the offset of its abort marker."""
    ends: list[int] = field(default_factory=list)
    """The end of the log after each letter."""

    def __post_init__(self) -> None:
        for letter in self.word:
            self._append(letter)
            self.ends.append(self._next)

    _next: int = 0

    def _append(self, letter: str) -> None:
        if letter == "h":
            self.missing += range(self._next, self._next + 3)
            self._next += 3
        if letter in "dh":
            self._data(-1, wanted=True)
        elif letter == "c":
            self._data(_COMMITTED_PRODUCER, wanted=True)
            self._marker(_COMMITTED_PRODUCER, ControlType.COMMIT)
        else:
            start = self._next
            self._data(_ABORTED_PRODUCER, wanted=False)
            if letter == "i":
                self._data(-1, wanted=True)
                self._data(_ABORTED_PRODUCER, wanted=False)
            self.aborted.append((start, self._next))
            self._marker(_ABORTED_PRODUCER, ControlType.ABORT)

    def _data(self, producer: int, *, wanted: bool) -> None:
        offsets = tuple(range(self._next, self._next + _BATCH_MESSAGES))
        records = [Record(o, 1_000_000 + o, None, b"%d." % o + b"x" * _VALUE_BYTES) for o in offsets]
        transaction = {"transactional": True, "producer_id": producer, "producer_epoch": 0} if producer >= 0 else {}
        batch = encode_batch(records, **transaction)  # type: ignore[arg-type]
        self.batches.append(batch)
        self.messages[batch] = offsets
        if wanted:
            self.wanted += offsets
        self._next += _BATCH_MESSAGES

    def _marker(self, producer: int, kind: ControlType) -> None:
        marker = control_batch(self._next, kind, timestamp_ms=1_000_000, producer_id=producer, producer_epoch=0)
        self.batches.append(marker)
        self._next += 1

    @property
    def end(self) -> int:
        return self.ends[-1]


class ModelCluster:
    """The methods of `waybill.services.kafka.cluster.Cluster` that `KafkaSource` calls, on the log of the lane's
    world."""

    servers = "model"

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> ModelCluster:
        return self

    def close(self) -> None:
        pass

    def describe_topics(self, topics: Iterable[str] | None) -> dict[str, Topic]:
        assert topics is None or list(topics) == [TOPIC]
        return {TOPIC: Topic(TOPIC, TOPIC_ID, tuple(range(lane().world.kafka_partitions)))}

    def leader(self, _: TopicPartition) -> Leader:
        return Leader(1, 0)

    def topic_id(self, _: str) -> str:
        return TOPIC_ID

    def attempts(self, what: str) -> Iterator[None]:
        for _ in range(3):
            yield
        raise KafkaUnavailable(f"{what}: no usable answer")

    def ask_leaders(
        self,
        what: str,
        tps: Iterable[TopicPartition],
        request: Callable[[list[TopicPartition]], Any],
        read: Callable[[Any], Iterable[tuple[TopicPartition, int, Any]]],
    ) -> dict[TopicPartition, Any]:
        tps = list(tps)
        asked = request(tps)
        kind = type(asked).__name__
        ((_, partitions),) = asked.topics
        answer = self._offset if kind == "ListOffsetsRequest" else self._epoch_end
        answers = [answer(partition) for partition in partitions]
        response = SimpleNamespace(topics=[SimpleNamespace(name=TOPIC, topic=TOPIC, partitions=answers)])
        found = {}
        for tp, code, value in read(response):
            assert not code, what
            found[tp] = value
        return found

    def _offset(self, asked: Any) -> SimpleNamespace:
        world = lane().world
        if asked.timestamp == _EARLIEST:
            offset = lane().call("kafka: earliest offset", lambda: world.earliest, shared=world.kafka_changes)
        else:
            offset = lane().call("kafka: end offset", world.ask_end, shared=world.kafka_changes)
        return SimpleNamespace(partition_index=asked.partition_index, error_code=0, offset=offset, timestamp=-1)

    def _epoch_end(self, asked: Any) -> SimpleNamespace:
        world = lane().world
        end = lane().call("kafka: end of leader epoch", lambda: world.end, shared=world.kafka_changes)
        return SimpleNamespace(partition=asked.partition, error_code=0, leader_epoch=0, end_offset=end)

    # --- fetches ---

    def send(self, _: int, request: Any) -> Future[Any]:
        asked = request.topics[0].partitions[0]
        future: Future[Any] = Future()
        position, wanted = int(asked.fetch_offset), int(asked.partition_max_bytes)
        world = lane().world
        future.set_result(
            lane().call(f"kafka: fetch from {position}", lambda: _fetch(position, wanted), shared=world.kafka_changes)
        )
        return future

    def wait(self, future: Future[Any]) -> Any:
        code, data, aborted = future.result()
        transactions = [SimpleNamespace(first_offset=first, producer_id=_ABORTED_PRODUCER) for first in aborted]
        partition = SimpleNamespace(
            error_code=code,
            diverging_epoch=None,
            records=data,
            aborted_transactions=transactions,
            high_watermark=lane().world.end,
            last_stable_offset=lane().world.end,
            log_start_offset=lane().world.earliest,
        )
        return SimpleNamespace(error_code=0, throttle_time_ms=0, responses=[SimpleNamespace(partitions=[partition])])


def _fetch(position: int, wanted: int) -> tuple[int, bytes, tuple[int, ...]]:
    """Return an error code, batches, and the first offsets of the aborted transactions among them."""
    world = lane().world
    if not world.earliest <= position <= world.end:
        return kafka_errors.OffsetOutOfRangeError.errno, b"", ()
    data, stop, wanted = b"", position, min(wanted, world.scenario.fetch_bytes)
    for batch in itertools.dropwhile(lambda b: read_header(b, 0, "log").next_offset <= position, world.log.batches):
        header = read_header(batch, 0, "log")
        if header.base_offset >= world.end or (data and len(data) + len(batch) > wanted):
            break
        data, stop = data + batch, header.next_offset
    return 0, data, tuple(first for first, marker in world.log.aborted if first < stop and marker >= position)
