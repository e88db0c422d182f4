"""Exactly-once delivery to a shared topic, on a model of Kafka's leader (sequence numbers as in KIP-98)."""

from __future__ import annotations

import contextlib
import copy
import io
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.errors import InvalidTimestampError

from waybill.base.errors import ReplayRefused
from waybill.config.names import TopicPartition
from waybill.records.batches.decode import decode
from waybill.records.batches.encode import Record, encode_batch, to_records
from waybill.records.batches.framing import read_frames, read_header
from waybill.records.batches.produced import Producer
from waybill.replay.requests.delivery.kafka_topic import TopicDelivery, Wording
from waybill.replay.requests.delivery.outcome import TargetUnavailable
from waybill.replay.requests.message import ReplayedMessage
from waybill.services.kafka.batch_producer import BatchRefused, OutOfSequence
from waybill.services.kafka.produce_request import ProduceAnswer
from waybill.services.kafka.target import TargetCluster

TOPIC = "shared"


class Leader:
    """One partition: its log, and the last five batches of each producer id."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.end = 0
        self.known: dict[tuple[int, int], list[tuple[int, int]]] = {}

    def append(self, data: bytes) -> bool:
        header = read_header(data, 0, "sent")
        if header.producer_id >= 0:
            who = (header.producer_id, header.producer_epoch)
            this = (header.base_sequence, header.base_sequence + header.last_offset_delta)
            last = self.known.get(who)
            if last is not None:
                if this in last[-5:]:
                    return True
                if this[0] != last[-1][1] + 1:
                    return False
            self.known.setdefault(who, []).append(this)
        stored = bytearray(data)
        stored[:8] = self.end.to_bytes(8, "big")
        self.batches.append(bytes(stored))
        self.end += header.record_count
        return True

    def frames(self, begin: int) -> list[Any]:
        frames = list(read_frames(io.BytesIO(b"".join(self.batches)), "log"))
        return [frame for frame in frames if frame.header.next_offset > begin]


class Cluster:
    """What a `TargetCluster` is for a delivery. `limit`: max.message.bytes."""

    def __init__(self, leaders: list[Leader], limit: int = 1 << 20) -> None:
        self.leaders, self.limit, self.where = leaders, limit, "model"
        self.producer, self.log = self, self
        self.shares_topics = False
        self.queues: dict[TopicPartition, list[bytes]] = {}
        self.dies_after: int | None = None
        self.largest = 0

    def find_topic(self, name: str) -> Any:
        return SimpleNamespace(
            name=name,
            topic_id="id",
            partitions=len(self.leaders),
            allowed=frozenset(),
            config={"max.message.bytes": str(self.limit), "cleanup.policy": "delete"},
            own_config={},
        )

    def new_producer(self) -> Producer:
        return Producer(7, 0)

    def offsets(self, tps: list[TopicPartition]) -> Any:
        return {tp: SimpleNamespace(earliest=0, end=self.leaders[tp.partition].end) for tp in tps}

    def read(self, tp: TopicPartition, begin: int, end: int, **_: Any) -> Any:
        if begin < end:
            yield SimpleNamespace(frames=self.leaders[tp.partition].frames(begin))

    def begin(self, tp: TopicPartition) -> None:
        self.queues.pop(tp, None)

    def send(self, tp: TopicPartition, batches: Any) -> None:
        self.queues.setdefault(tp, []).extend(data for data, _ in batches.data)

    def check(self, tp: TopicPartition, *, flush: bool = False) -> None:
        assert flush
        for data in self.queues.pop(tp, []):
            if self.dies_after is not None:
                if not self.dies_after:
                    raise ConnectionError("killed")
                self.dies_after -= 1
            self.largest = max(self.largest, len(data))
            if not self.leaders[tp.partition].append(data):
                raise OutOfSequence("refused")

    def forget(self, tp: TopicPartition) -> None:
        self.queues.pop(tp, None)


def message(number: int, *, size: int = 10, headers: Any = ()) -> ReplayedMessage:
    key = f"key {number % 5}".encode()
    return ReplayedMessage(
        TopicPartition("a", 0), number, 1000 + number, key, str(number).encode().ljust(size), headers
    )


def messages_up_to(count: int) -> list[ReplayedMessage]:
    return [message(number) for number in range(count)]


def one_leader() -> list[Leader]:
    return [Leader()]


def new_state() -> dict[str, Any]:
    return {}


def others() -> bytes:
    return encode_batch([Record(0, 1, b"other", b"other")], leader_epoch=-1)


def values(leaders: list[Leader]) -> list[int]:
    found: list[int] = []
    for leader in leaders:
        for batch in decode(leader.frames(0), where="log"):
            found += [int(record.value or b"") for record in to_records(batch) if record.key != b"other"]
    return sorted(found)


class Worker:
    """A worker in miniature: the cursor and the state are stored together."""

    def __init__(self, leaders: list[Leader], stored: dict[str, Any], messages: list[ReplayedMessage]) -> None:
        self.cluster = Cluster(leaders)
        self.messages, self.stored = messages, stored
        self.cursor = stored.get("cursor", 0)
        state = stored.get("state")
        self.delivery = TopicDelivery(
            cast("TargetCluster", self.cluster), TOPIC, None if state is None else copy.deepcopy(state)
        )
        self.delivery.prepare()
        self.save()

    def save(self) -> None:
        self.stored["state"], self.stored["cursor"] = json.loads(json.dumps(self.delivery.state)), self.cursor

    def step(self, count: int, *, saved: bool = True) -> None:
        part = self.messages[self.cursor : self.cursor + count]
        assert not self.delivery.deliver(part)
        self.cursor += len(part)
        if saved:
            self.save()


def test_two_restarts_before_the_cursor_passes_what_the_target_has() -> None:
    leaders, stored, all_ = one_leader(), new_state(), messages_up_to(20)
    Worker(leaders, stored, all_).step(10, saved=False)  # killed before its cursor is stored
    Worker(leaders, stored, all_)  # killed after `prepare` has found the ten messages, and its state is stored
    last = Worker(leaders, stored, all_)
    last.step(7)  # another cut than the first worker's
    last.step(20)
    assert values(leaders) == list(range(20))


def test_two_restarts_after_the_leader_has_forgotten_the_producer() -> None:
    leaders, stored, all_ = one_leader(), new_state(), messages_up_to(20)
    Worker(leaders, stored, all_).step(10, saved=False)
    Worker(leaders, stored, all_)
    leaders[0].known.clear()  # producer.id.expiration.ms
    Worker(leaders, stored, all_).step(20)
    assert values(leaders) == list(range(20))


def test_truncated_target_is_refused_and_not_taken_for_complete() -> None:
    """An unclean election took back messages behind the cursor, and others have appended since."""
    leaders, stored, all_ = one_leader(), new_state(), messages_up_to(30)
    worker = Worker(leaders, stored, all_)
    worker.step(10)
    worker.step(10)
    lost = leaders[0].batches.pop()
    leaders[0].end -= read_header(lost, 0, "").record_count
    leaders[0].known[(7, 0)].pop()
    for _ in range(12):
        assert leaders[0].append(others())
    with pytest.raises(ReplayRefused, match="unclean leader election"):
        Worker(leaders, stored, all_).step(10)


def test_batches_stay_below_the_limit_with_long_header_names() -> None:
    leaders = [Leader()]
    cluster = Cluster(leaders, limit=4000)
    delivery = TopicDelivery(cast("TargetCluster", cluster), TOPIC, None)
    delivery.prepare()
    assert not delivery.deliver([message(n, headers=(("\U0001f600" * 100, b"1"),)) for n in range(50)])
    assert cluster.largest <= 4000


class History:
    """One worker that counts, and a zombie of before that may still send."""

    def __init__(self, leaders: list[Leader], stored: dict[str, Any], messages: list[ReplayedMessage]) -> None:
        self.leaders, self.stored, self.messages = leaders, stored, messages
        self.worker = self.zombie = self.new_worker()

    def new_worker(self) -> Worker:
        return Worker(self.leaders, self.stored, self.messages)

    def take(self, kind: str, count: int) -> None:
        match kind:
            case "other":
                for leader in self.leaders:
                    leader.append(others())
            case "forget":  # a day without sends: no worker of before is alive by then
                self.zombie = self.worker = self.new_worker()
                for leader in self.leaders:
                    leader.known.clear()
            case "restart":
                self.zombie, self.worker = self.worker, self.new_worker()
            case "zombie":
                self.step_of_zombie(count)
            case _:
                self.step_of_worker(kind, count)

    def step_of_zombie(self, count: int) -> None:
        with contextlib.suppress(TargetUnavailable, ConnectionError):
            self.zombie.step(count, saved=False)
            return
        self.zombie = self.worker

    def step_of_worker(self, kind: str, count: int) -> None:
        is_zombie = self.zombie is self.worker
        self.worker.cluster.dies_after = count % 3 if kind == "die" else None
        try:
            self.worker.step(count, saved=kind == "save")
        except (TargetUnavailable, ConnectionError):
            self.worker = self.new_worker()
            self.zombie = self.worker if is_zombie else self.zombie
            return
        if kind == "lose":
            self.worker = self.zombie = self.new_worker()


STEPS = st.lists(
    st.tuples(st.sampled_from(["save", "lose", "die", "restart", "other", "zombie", "forget"]), st.integers(1, 9)),
    max_size=12,
)


@settings(max_examples=300, deadline=None)
@given(STEPS, st.integers(1, 3))
def test_every_history_delivers_each_message_once(steps: list[tuple[str, int]], partitions: int) -> None:
    leaders, stored, all_ = [Leader() for _ in range(partitions)], new_state(), messages_up_to(40)
    history = History(leaders, stored, all_)
    for kind, count in steps:
        history.take(kind, count)
    worker = history.worker
    for _ in range(4):  # the worker tries again later
        try:
            worker = Worker(leaders, stored, all_)
            while worker.cursor < 40:
                worker.step(8)
            break
        except Exception:
            continue
    assert worker.cursor == 40, "the request never ends"
    assert values(leaders) == list(range(40))


def test_failed_deliver_leaves_state_that_was_true() -> None:
    """`deliver` raises when one partition of two is acknowledged; the state must not claim more than the log has."""
    leaders, all_ = [Leader(), Leader(), Leader()], [message(n) for n in range(40)]
    cluster = Cluster(leaders)
    delivery = TopicDelivery(cast("TargetCluster", cluster), TOPIC, None)
    delivery.prepare()
    cluster.dies_after = 1
    with pytest.raises(ConnectionError):
        delivery.deliver(all_)
    state = json.loads(json.dumps(delivery.state))
    other = Cluster(leaders)
    again = TopicDelivery(cast("TargetCluster", other), TOPIC, state)
    again.prepare()
    again.deliver(all_)
    assert values(leaders) == list(range(40))


def test_truncated_target_without_later_messages_is_refused() -> None:
    leaders, stored, all_ = one_leader(), new_state(), messages_up_to(30)
    Worker(leaders, stored, all_).step(20)
    Worker(leaders, stored, all_)  # the state has the log's end behind all 20
    lost = leaders[0].batches.pop()
    leaders[0].end -= read_header(lost, 0, "").record_count
    leaders[0].known[(7, 0)].pop() if len(leaders[0].known[(7, 0)]) > 1 else leaders[0].known.clear()
    with pytest.raises(ReplayRefused, match="unclean leader election"):
        Worker(leaders, stored, all_).step(10)


def test_added_partitions_matter_only_where_keys_choose_the_partition() -> None:
    leaders, all_ = one_leader(), messages_up_to(10)
    wording = Wording("publication", "abandon it", "run again")
    states = {}
    for only in (None, 0):
        delivery = TopicDelivery(
            cast("TargetCluster", Cluster(leaders)), TOPIC, None, only_partition=only, wording=wording
        )
        delivery.prepare()
        states[only] = delivery.state
    more = cast("TargetCluster", Cluster([*leaders, Leader()]))
    with pytest.raises(ReplayRefused, match="keys would change their partition: abandon it"):
        TopicDelivery(more, TOPIC, states[None], wording=wording).prepare()
    delivery = TopicDelivery(more, TOPIC, states[0], only_partition=0)
    delivery.prepare()
    delivery.deliver(all_)
    assert values(leaders) == list(range(10))


def test_refused_timestamp_ends_the_request_with_the_config_to_change() -> None:
    cluster = Cluster(one_leader())
    delivery = TopicDelivery(cast("TargetCluster", cluster), TOPIC, None)
    delivery.prepare()

    def refuse(tp: TopicPartition, *, flush: bool = False) -> None:
        sent = SimpleNamespace(offset=0, batch=b"", messages=1)
        answer = ProduceAnswer(32, -1, "Timestamp 5 is out of range", 0, 0)
        raise BatchRefused(tp, InvalidTimestampError, answer, cast("Any", sent))

    cluster.check = refuse  # type: ignore[method-assign]
    expected = "InvalidTimestampError: Timestamp 5 is out of range.*message.timestamp.after.max.ms"
    with pytest.raises(ReplayRefused, match=expected):
        delivery.deliver(messages_up_to(1))
