"""The messages of all scripts of bench/: JSON events of 453 bytes, alone, in record batches and in backup objects.

`message` makes one event. `event_values` makes millions as numpy arrays, at some microseconds an event: each has an id
and an event time of its own, and the rest of one of 20,000 templates.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waybill.config.names import BackupName, TopicPartition
from waybill.records.batches import HEADER_BYTES, Codec, read_header
from waybill.records.batches.compression import compress
from waybill.records.batches.encode import Record, encode_batch
from waybill.records.batches.framing import pack_batch

if TYPE_CHECKING:
    import numpy as np

    from waybill.services.store import Store

    Values = np.ndarray[Any, np.dtype[np.uint8]]

# numpy is imported where it is used: bench/ingest.py measures the start-up of processes that do not need it.

MESSAGE_BYTES = 453
BATCH_MESSAGES = 140
"""A batch of 64 KB."""

_FIRST_MS = 1_700_000_000_000
_INTERVAL_MS = 13
"""The mean distance of event times: two million events are seven hours."""
_JITTER_MS = 1000
_TEMPLATES = 20_000
_ID = slice(13, 45)
_TIME = slice(60, 73)
_UPLOADS = 4


def message(number: int, chance: random.Random) -> bytes:
    """Return a booking event of 453 bytes: ids, numbers, some fields of few values, some free text."""
    event = {
        "event_id": f"{chance.getrandbits(128):032x}",
        "event_time": _FIRST_MS + number * _INTERVAL_MS + chance.randrange(_JITTER_MS),
        "type": chance.choice(["search", "select", "seat", "pay", "confirm", "cancel"]),
        "carrier": chance.choice(["UA", "AA", "DL", "B6", "WN", "EV", "MQ"]),
        "flight": chance.randrange(1, 9999),
        "origin": chance.choice(["JFK", "LGA", "EWR"]),
        "dest": chance.choice(["LAX", "SFO", "ATL", "ORD", "MIA", "BOS", "IAH", "DEN"]),
        "passenger": {"id": chance.randrange(10_000_000), "tier": chance.choice(["none", "silver", "gold"])},
        "price": round(chance.random() * 900, 2),
        "session": f"{chance.getrandbits(64):016x}",
        "ip": ".".join(str(chance.randrange(256)) for _ in range(4)),
        "agent": f"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/{chance.randrange(90, 131)}.0",
        "note": "",
    }
    words = ["window", "aisle", "vegetarian", "late", "transfer", "upgrade", "family", "baggage", "meal", "wheelchair"]
    missing = MESSAGE_BYTES - len(json.dumps(event, separators=(",", ":")))
    event["note"] = " ".join(chance.choices(words, k=missing // 4 + 1))[: max(missing, 0)]
    return json.dumps(event, separators=(",", ":")).encode()


def messages(count: int) -> list[bytes]:
    """Return the first `count` messages; every process makes the same."""
    chance = random.Random(7)
    return [message(number, chance) for number in range(count)]


# --- record batches ---------------------------------------------------------------------------------------------------


def write_batches(path: Path, codec: Codec, count: int, per_batch: int) -> None:
    """Write `count` messages to a file, as record batches of `per_batch` messages."""
    with path.open("wb") as file:
        for batch in _uncompressed_batches(count, per_batch):
            header = read_header(batch, 0, "input")._replace(attributes=int(codec))
            file.write(pack_batch(header, compress(codec, batch[HEADER_BYTES:])))


@cache
def _uncompressed_batches(count: int, per_batch: int) -> list[bytes]:
    values = messages(count)
    records = [Record(n, _FIRST_MS + n, b"%08d" % (n % 5000), value) for n, value in enumerate(values)]
    return [encode_batch(records[start : start + per_batch]) for start in range(0, count, per_batch)]


# --- events as arrays -------------------------------------------------------------------------------------------------


def event_values(first: int, count: int) -> Values:
    """Return the events numbered from `first`, one in each row of 453 bytes. The same arguments give the same rows."""
    import numpy as np

    chance = np.random.default_rng(first)
    numbers = np.arange(first, first + count)
    rows = _templates()[numbers % _TEMPLATES]
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    rows[:, _ID] = digits[chance.integers(0, 16, (count, _ID.stop - _ID.start), dtype=np.uint8)]
    times_ms = _FIRST_MS + numbers * _INTERVAL_MS + chance.integers(0, _JITTER_MS, count)
    powers = 10 ** np.arange(_TIME.stop - _TIME.start - 1, -1, -1)
    rows[:, _TIME] = times_ms[:, None] // powers % 10 + ord("0")
    return rows


@cache
def _templates() -> Values:
    import numpy as np

    rows = np.frombuffer(b"".join(messages(_TEMPLATES)), np.uint8).reshape(_TEMPLATES, MESSAGE_BYTES)
    assert bytes(rows[0, : _ID.start]) == b'{"event_id":"'
    assert bytes(rows[0, _ID.stop : _TIME.start]) == b'","event_time":'
    return rows


# --- backup objects ---------------------------------------------------------------------------------------------------


def put_archive(
    store: Store, topic: str, *, messages: int, objects: int, partitions: int = 1, per_batch: int = BATCH_MESSAGES
) -> tuple[int, list[int]]:
    """Create backup objects as ingest would, without Kafka; return their bytes and the end offset of each chain.

    Messages are spread evenly over the objects. The topic-partitions take turns, so that each has events of the whole
    time.
    """
    jobs = []
    offsets = [0] * partitions
    for number, (start, end) in enumerate(pairwise(messages * n // objects for n in range(objects + 1))):
        tp = TopicPartition(topic, number % partitions)
        jobs.append((tp, start, end - start, offsets[tp.partition]))
        offsets[tp.partition] += end - start

    def put(tp: TopicPartition, first: int, count: int, offset: int) -> int:
        content = b"".join(_event_batches(first, count, offset, per_batch))
        store.create_if_absent(BackupName(tp.topic, 1, tp.partition, offset).key(store.prefix), content)
        return len(content)

    with ThreadPoolExecutor(_UPLOADS) as pool:
        return sum(pool.map(lambda job: put(*job), jobs)), offsets


def _event_batches(first: int, count: int, first_offset: int, per_batch: int) -> Iterator[bytes]:
    """Yield zstd record batches of the events `[first, first + count)`, at the offsets from `first_offset` on."""
    for start in range(0, count, per_batch):
        rows = event_values(first + start, min(per_batch, count - start))
        offset, time_ms = first_offset + start, _FIRST_MS + (first + start) * _INTERVAL_MS
        records = [Record(offset + n, time_ms + n, b"%08d" % n, row.tobytes()) for n, row in enumerate(rows)]
        yield encode_batch(records, codec=Codec.ZSTD)
