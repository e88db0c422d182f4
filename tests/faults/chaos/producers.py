"""Producers of numbered messages, and the ledger of messages that Kafka acknowledged.

Each key names its producer and its number, so a message can be recognized everywhere: `idempotent-0:000012`.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from confluent_kafka import KafkaException, Message, Producer

_log = logging.getLogger(__name__)
_log.addHandler(logging.NullHandler())
_log.propagate = False  # errors of producers while brokers are killed are expected here

_SECONDS = 60.0
_MESSAGE_SECONDS = 240.0
"""How long librdkafka tries to write a message: longer than servers are away on a slow machine. See `_delivered`."""
_PENDING_AT_MOST = 2000
_OVERTIME_PAUSE_SECONDS = 0.3


class ProducerKind(StrEnum):
    """How a producer writes."""

    PLAIN = "plain"
    """`acks=all`, retries: Kafka itself may hold a message of it twice."""
    IDEMPOTENT = "idempotent"
    TRANSACTIONAL = "transactional"
    """Idempotent, in transactions, some of which it aborts."""


@dataclass(frozen=True)
class ProducerPlan:
    """The messages that a producer writes, drawn from the seed."""

    name: str
    kind: ProducerKind
    messages: int
    """The minimum number of messages; the producer goes on while the scenario waits for faults."""
    burst: int
    """Messages at a time, and messages of a transaction."""
    pause_seconds: float
    """Between bursts."""
    value_bytes: int
    codec: str
    batch_messages: int
    aborted_share: float
    """The share of transactions that it aborts."""
    partitions: tuple[int, ...]
    seed: int


@dataclass
class Ledger:
    """The outcome of each message."""

    written: int = 0
    acknowledged: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """Partition and offset by key, for messages that must be in the archive. Messages of uncommitted transactions are
    missing."""
    aborted: set[bytes] = field(default_factory=set)
    unknown: set[bytes] = field(default_factory=set)
    """Messages without an answer, or without an answer to their commit: they may be in the archive."""
    at_least_once: set[str] = field(default_factory=set)
    """Producers whose messages Kafka itself may hold twice."""
    committed_transactions: int = 0
    aborted_transactions: int = 0

    def merge(self, other: Ledger) -> None:
        self.written += other.written
        self.acknowledged.update(other.acknowledged)
        self.aborted |= other.aborted
        self.unknown |= other.unknown
        self.at_least_once |= other.at_least_once
        self.committed_transactions += other.committed_transactions
        self.aborted_transactions += other.aborted_transactions


def produce(
    plan: ProducerPlan, bootstrap_servers: str, topic: str, *, more: Callable[[], bool], stop: threading.Event
) -> Ledger:
    """Write the plan's messages, and more while `more()`; returns when every one is answered or given up."""
    run = _Run(plan, bootstrap_servers, topic)
    while not stop.is_set() and (run.ledger.written < plan.messages or more()):
        run.burst()
        time.sleep(plan.pause_seconds if run.ledger.written < plan.messages else _OVERTIME_PAUSE_SECONDS)
    run.finish()
    return run.ledger


class _Run:
    def __init__(self, plan: ProducerPlan, bootstrap_servers: str, topic: str) -> None:
        self._plan = plan
        self._topic = topic
        self._random = random.Random(plan.seed)
        self._padding = self._random.randbytes(plan.value_bytes)
        self._servers = bootstrap_servers
        self._producer = self._connect()
        self._answers: dict[bytes, tuple[int, int] | None] = {}
        self.ledger = Ledger()
        if plan.kind is ProducerKind.PLAIN:
            self.ledger.at_least_once.add(plan.name)

    def _connect(self) -> Producer:
        settings: dict[str, object] = {
            "bootstrap.servers": self._servers,
            "acks": "all",
            "linger.ms": 5,
            "compression.type": self._plan.codec,
            "batch.num.messages": self._plan.batch_messages,
            "enable.idempotence": self._plan.kind is not ProducerKind.PLAIN,
            "message.timeout.ms": int(_MESSAGE_SECONDS * 1000),
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }
        if self._plan.kind is ProducerKind.TRANSACTIONAL:
            timeout_ms = int(_SECONDS * 1000)  # librdkafka wants no message to outlive its transaction
            settings |= {"message.timeout.ms": timeout_ms, "transaction.timeout.ms": timeout_ms}
            settings["transactional.id"] = f"{self._topic}-{self._plan.name}"
        producer = Producer(settings, logger=_log)
        if self._plan.kind is ProducerKind.TRANSACTIONAL:
            _retried(lambda: producer.init_transactions(_SECONDS))
        return producer

    def burst(self) -> None:
        if self._plan.kind is ProducerKind.TRANSACTIONAL:
            self._transaction()
            return
        for _ in range(self._plan.burst):
            self._send()
        self._producer.poll(0)
        if len(self._producer) > _PENDING_AT_MOST:
            self._producer.flush(_SECONDS)

    def finish(self) -> None:
        self._producer.flush(_MESSAGE_SECONDS)
        if self._plan.kind is not ProducerKind.TRANSACTIONAL:
            self._settle(list(self._answers))

    def _send(self) -> bytes:
        number = self.ledger.written
        key = f"{self._plan.name}:{number:06d}".encode()
        start = self._random.randrange(max(1, len(self._padding) // 2))
        value = b"%b|%b" % (key, self._padding[start:])
        self.ledger.written += 1
        self._answers[key] = None
        partition = self._plan.partitions[number // self._plan.batch_messages % len(self._plan.partitions)]
        self._producer.produce(self._topic, value=value, key=key, partition=partition, on_delivery=self._delivered)
        return key

    def _delivered(self, error: object, message: Message) -> None:
        key = message.key()
        if error is None and isinstance(key, bytes):
            self._answers[key] = (message.partition(), message.offset())
        elif self._plan.kind is ProducerKind.IDEMPOTENT:
            # librdkafka gave up on a message, and goes on under a new epoch: what it then sends again, Kafka may hold
            # twice. Kafka's content still tells what the archive must hold.
            self.ledger.at_least_once.add(self._plan.name)

    def _settle(self, keys: list[bytes]) -> None:
        """Answered messages are acknowledged, the others unknown."""
        for key in keys:
            answer = self._answers.pop(key)
            if answer is None:
                self.ledger.unknown.add(key)
            else:
                self.ledger.acknowledged[key] = answer

    def _transaction(self) -> None:
        abort = self._random.random() < self._plan.aborted_share
        keys: list[bytes] = []
        try:
            self._producer.begin_transaction()
            keys += [self._send() for _ in range(self._plan.burst)]
            if abort:
                self._abort(keys)
                return
            _retried(lambda: self._producer.commit_transaction(_SECONDS))
        except KafkaException as error:
            if error.args[0].txn_requires_abort():
                self._abort(keys)
                return
            self._give_up(keys)
            return
        self.ledger.committed_transactions += 1
        self._settle(keys)

    def _abort(self, keys: list[bytes]) -> None:
        try:
            _retried(lambda: self._producer.abort_transaction(_SECONDS))
        except KafkaException:
            self._give_up(keys)
            return
        self.ledger.aborted_transactions += 1
        self.ledger.aborted.update(keys)
        for key in keys:
            self._answers.pop(key, None)

    def _give_up(self, keys: list[bytes]) -> None:
        """The outcome of the transaction is unknown. A new producer with the same id ends it."""
        self.ledger.unknown.update(keys)
        for key in keys:
            self._answers.pop(key, None)
        self._producer = self._connect()


def _retried(call: Callable[[], object]) -> None:
    """librdkafka's transactional calls may be repeated while their error says so."""
    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            call()
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return
