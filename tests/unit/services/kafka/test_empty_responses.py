"""Fetch responses without a batch below the end of the log.

No test can make a broker's log end without a batch: that takes a crash between the roll of a segment and the next
append, and then the log cleaner. So the responses are scripted, as `LocalLog.read` and the quota manager of Kafka 4.1
give them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from waybill.base.errors import KafkaUnavailable
from waybill.config.connections import KafkaEndpoint
from waybill.config.models import IsolationLevel
from waybill.config.names import TopicPartition
from waybill.records.batches.encode import Record, encode_batch
from waybill.services.kafka import kafka
from waybill.services.kafka.cluster import Leader
from waybill.services.kafka.kafka import KafkaSource

TP = TopicPartition("t", 0)
BATCH = encode_batch([Record(offset, 1_000, None, b"v") for offset in range(5)])
ATTEMPTS = 12


class ScriptedCluster:
    """A cluster whose log ends at 10 and holds one batch, of [0, 5). Each fetch after it gets the same response."""

    earliest_local = 0
    throttle_ms = 0
    high_watermark = 10
    stable = 10

    def __init__(self, *_: Any, **__: Any) -> None:
        self.fetches = 0

    def attempts(self, what: str) -> Iterator[None]:
        for _ in range(ATTEMPTS):
            yield
        raise KafkaUnavailable(what)

    def leader(self, _: TopicPartition) -> Leader:
        return Leader(1, 0)

    def topic_id(self, _: str) -> str:
        return ""

    def send(self, _: int, request: Any) -> Future[Any]:
        self.fetches += 1
        sent: Future[Any] = Future()
        sent.set_result(int(request.topics[0].partitions[0].fetch_offset))
        return sent

    def wait(self, sent: Future[Any]) -> Any:
        answer = SimpleNamespace(
            error_code=0,
            diverging_epoch=None,
            records=BATCH if sent.result() < 5 else b"",
            aborted_transactions=None,
            high_watermark=self.high_watermark,
            last_stable_offset=self.stable,
        )
        return SimpleNamespace(
            error_code=0, throttle_time_ms=self.throttle_ms, responses=[SimpleNamespace(partitions=[answer])]
        )

    def ask_leaders(
        self, _: str, tps: Iterable[TopicPartition], request: Any, __: Any, **___: Any
    ) -> dict[Any, tuple[int, int]]:
        ((_, (asked,)),) = request(list(tps)).topics
        assert asked.timestamp == -4, "the first offset on the leader's own disk"
        return {TP: (self.earliest_local, -1)}


def read(monkeypatch: pytest.MonkeyPatch, isolation: IsolationLevel, **answers: int) -> tuple[list[Any], int]:
    """Return the chunks of [0, 10), and the number of fetches."""
    monkeypatch.setattr(kafka, "Cluster", type("Answering", (ScriptedCluster,), answers))
    source = KafkaSource(KafkaEndpoint(bootstrap_servers=("scripted:1",)), isolation)
    chunks = list(source.read(TP, 0, 10))
    return chunks, source._cluster.fetches  # type: ignore[attr-defined]


@pytest.mark.parametrize("isolation", IsolationLevel)
def test_read_ends_with_the_last_batch_when_the_log_cleaner_removed_those_after_it(
    monkeypatch: pytest.MonkeyPatch, isolation: IsolationLevel
) -> None:
    chunks, fetches = read(monkeypatch, isolation)
    assert [chunk.next_offset for chunk in chunks] == [5], "there is no chunk of 5 to 9"
    assert fetches < ATTEMPTS, "the reader does not wait until its timeout"


@pytest.mark.parametrize(
    "answers",
    [
        {"throttle_ms": 100},
        {"earliest_local": 8},
        {"high_watermark": 9},
        {"stable": 7},
    ],
    ids=["quota", "tiered storage", "high watermark not known yet", "open transaction"],
)
def test_read_waits_when_the_response_may_be_empty_for_another_reason(
    monkeypatch: pytest.MonkeyPatch, answers: dict[str, int]
) -> None:
    with pytest.raises(KafkaUnavailable, match="t/0: could not fetch from offset 5"):
        read(monkeypatch, IsolationLevel.READ_COMMITTED, **answers)


def test_read_uncommitted_does_not_wait_for_an_open_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks, _ = read(monkeypatch, IsolationLevel.READ_UNCOMMITTED, stable=7)
    assert len(chunks) == 1
