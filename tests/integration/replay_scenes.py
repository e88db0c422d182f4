"""A stream to replay from, partly archived, and what a request must deliver, according to librdkafka's consumer."""

from __future__ import annotations

import base64
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import replay_databases as helpers
from archived_stream import ArchivedStream
from restore_scenes import Message, consume

from waybill.config.connections import Connection
from waybill.replay.requests.database import Database
from waybill.replay.requests.migrations import migrate
from waybill.replay.requests.queue import Queue
from waybill.replay.requests.request import parse_request, replay_of, time_text_of
from waybill.replay.requests.stored import StoredRequest
from waybill.replay.requests.worker import Served, serve

KEY = b"a key of thirty-two random bytes"
WEBHOOKS = "waybill_webhooks"


class Delivered(NamedTuple):
    """A message as S3 parts and webhooks have it, without its place."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class ReplayScene:
    """A stream `events`, and a database of requests in SQLite; both for one module."""

    def __init__(self, directory: Path, topic: str, *, partitions: int = 3, replay: str = "") -> None:
        self.stream = ArchivedStream(directory, topic, partitions=partitions, max_bytes="64KiB")
        text = self.stream.file.read_text()
        section = f"replay: {{webhooks: {{allow_http: true, allowed_networks: [127.0.0.0/8]}}{replay}}}\n"
        self.stream.file.write_text(text.replace("streams:\n", section + "streams:\n"))
        database = helpers.sqlite_connection(directory / "replay.db")
        webhooks = Connection(conn_id=WEBHOOKS, conn_type="http", password=KEY.decode())
        self.environment = {each.variable: each.to_environment() for each in (database, webhooks)}
        with helpers.open_database(database) as opened:
            migrate(opened)
        self.start_ms = int(datetime(2026, 1, 5, 10, tzinfo=UTC).timestamp() * 1000)

    # --- messages ---

    def produce(self, count: int, seed: int, *, keys: int = 12, minutes: int = 60) -> None:
        """Produce messages with random keys, in random order of time, a few of them twice."""
        chosen = random.Random(seed)
        producer = self.stream.producer(**{"partitioner": "murmur2_random", "batch.num.messages": 40})
        for number in range(count):
            key = None if chosen.random() < 0.05 else f"k{chosen.randrange(keys)}".encode()
            value = None if chosen.random() < 0.05 else chosen.randbytes(chosen.randrange(200)) + b"%d" % number
            headers: list[tuple[str, bytes | None]] = [("n", b"%d" % number), ("n", None)] if number % 7 == 0 else []
            at_ms = self.start_ms + chosen.randrange(minutes * 60_000)
            for _ in range(2 if chosen.random() < 0.05 else 1):
                producer.produce(self.stream.topic, value, key, headers=headers, timestamp=at_ms)
            producer.poll(0)
        assert producer.flush(60) == 0

    def messages(self) -> list[Message]:
        """Return all messages of the topic as librdkafka's consumer reads them."""
        return consume(self.stream.servers, self.stream.topic, isolation="read_committed")

    # --- requests ---

    def request(self, keys: Iterable[bytes | str], begin: float, end: float, target: Mapping[str, Any]) -> str:
        """Create a request for the minutes `[begin, end)` of the scene, and return its id."""
        document = {
            "stream": "events",
            "keys": [key if isinstance(key, str) else key.decode() for key in keys],
            "from": time_text_of(self.at_ms(begin)),
            "to": time_text_of(self.at_ms(end)),
            "target": dict(target),
        }
        config, now_ms = self.stream.config, time.time_ns() // 1_000_000
        with Database.of(config) as database:
            queue = Queue(database, replay_of(config).quotas)
            stored, _ = queue.create(parse_request(config, document, now_ms), "ann", now_ms)
        return stored.request.id

    def at_ms(self, minute: float) -> int:
        return self.start_ms + round(minute * 60_000)

    def show(self, request_id: str) -> StoredRequest:
        config = self.stream.config
        with Database.of(config) as database:
            return Queue(database, replay_of(config).quotas).show(request_id)

    def serve(self, seconds: float = 60) -> Served:
        """Serve requests in this process until none is left."""
        return serve(self.stream.config, worker="test", seconds=seconds)

    def worker(self, environment: Mapping[str, str], seconds: float = 60) -> subprocess.Popen[bytes]:
        """Serve requests in a process of its own."""
        code = (
            "import sys\n"
            "from waybill.config.models import load_valid_streams\n"
            "from waybill.replay.requests.worker import serve\n"
            "print(serve(load_valid_streams(), worker=sys.argv[1], seconds=float(sys.argv[2])))\n"
        )
        return subprocess.Popen(
            [sys.executable, "-c", code, "process", str(seconds)],
            env={**environment, "WAYBILL_CONFIG": str(self.stream.file)},
            stdout=subprocess.DEVNULL,
        )

    # --- what was delivered ---

    def parts(self, request_id: str) -> list[Delivered]:
        """Return the messages of a request's uncompressed objects, in order."""
        found: list[Delivered] = []
        with self.stream.store() as store:
            for key in store.keys(f"{store.prefix}/replays/{request_id}/part-"):
                found += [_delivered(json.loads(line)) for line in store.read(key).splitlines()]
        return found

    def manifest(self, request_id: str) -> Any:
        with self.stream.store() as store:
            return json.loads(store.read(f"{store.prefix}/replays/{request_id}/manifest.json"))


def expected(
    topic: str, messages: Iterable[Message], keys: Iterable[bytes], from_ms: int, to_ms: int
) -> list[Delivered]:
    """Return what a request must deliver: by partition and offset, each message that was sent twice once."""
    wanted, seen, found = set(keys), set[Any](), []
    for message in messages:
        if message.key not in wanted or not from_ms <= message.timestamp[1] < to_ms:
            continue
        content = (message.timestamp[1], message.key, message.value, message.headers)
        if content not in seen:
            seen.add(content)
            found.append(Delivered(topic, message.partition, message.offset, *content))
    return found


def places(messages: Iterable[Delivered]) -> list[tuple[str, int, int]]:
    return [message[:3] for message in messages]


def _delivered(document: Mapping[str, Any]) -> Delivered:
    return Delivered(
        document["topic"],
        document["partition"],
        document["offset"],
        document["timestamp_ms"],
        _bytes(document["key"]),
        _bytes(document["value"]),
        tuple((each["name"], _bytes(each["value"])) for each in document["headers"]),
    )


def _bytes(value: Any) -> bytes | None:
    if isinstance(value, dict):
        return base64.b64decode(value["base64"])
    return None if value is None else str(value).encode()
