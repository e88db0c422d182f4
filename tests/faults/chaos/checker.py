"""Check the archive without any code of Waybill.

Objects are listed with botocore and ordered by their names, record batches are read with kafka-python's own parser, and
Kafka's messages with librdkafka's consumer under `read_committed`. Each message that Kafka acknowledged and committed
must be in the archive once, in order, and nothing else may be.
"""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from kafka.record.memory_records import MemoryRecords

from chaos.producers import Ledger

_NAME = re.compile(r"(?P<generation>\d+)_(?P<partition>\d+)_(?P<first>\d{20})\.(?P<extension>kafka|txt)")
_SECONDS = 60.0


class FaultKind:
    """The kinds of faults, with the names of the report's columns."""

    LOST = "lost"
    REPEATED = "repeated"
    OUT_OF_ORDER = "out of order"
    FOREIGN = "foreign"
    """A message of the archive that Kafka does not have, or has with other content."""
    ABORTED = "aborted"
    CHANGED = "changed"
    """An object that has changed since it was first seen."""
    BROKEN = "broken"
    """A chain with missing offsets, or an object that cannot be read."""


@dataclass(frozen=True)
class Fault:
    """One kind of fault of one topic-partition or object; `count`: the number of messages or objects."""

    kind: str
    count: int
    what: str


@dataclass
class Checked:
    """What was found."""

    messages: int = 0
    objects: int = 0
    faults: list[Fault] = field(default_factory=list)

    def add(self, kind: str, count: int, what: str) -> None:
        if count:
            self.faults.append(Fault(kind, count, what))


class Stamp(NamedTuple):
    """Properties of an object in S3 that do not change while the object is the same."""

    etag: str
    size_bytes: int
    modified: Any


class ObjectWatch:
    """Stores the properties of each object of a prefix when it was first seen."""

    def __init__(self, client: Any, bucket: str, prefix: str) -> None:
        self._client, self._bucket, self._prefix = client, bucket, prefix
        self.first: dict[str, Stamp] = {}
        self.changed: set[str] = set()

    def look(self) -> None:
        """List the objects, and find those that have changed or disappeared since they were first seen."""
        now: dict[str, Stamp] = {}
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._prefix)
        for page in pages:
            for entry in page.get("Contents", []):
                now[entry["Key"]] = Stamp(entry["ETag"], entry["Size"], entry["LastModified"])
        self.changed |= {key for key, stamp in self.first.items() if now.get(key) != stamp}
        self.first = now | self.first


class _Record(NamedTuple):
    offset: int
    key: bytes
    value: bytes | None


class _Object(NamedTuple):
    key: str
    first: int
    next: int
    records: list[_Record]


def check(
    client: Any, bucket: str, prefix: str, topic: str, partitions: int, bootstrap_servers: str, ledger: Ledger
) -> Checked:
    """Compare the objects below `prefix` with the ledger and with the messages that Kafka has now."""
    checked = Checked()
    chains = _read_chains(client, bucket, prefix, checked)
    archive: dict[int, list[_Record]] = {}
    for partition in range(partitions):
        archive[partition] = _check_chain(f"{topic}/{partition}", chains.get(partition, []), checked)
    in_kafka = _consume(bootstrap_servers, topic, partitions)
    for partition in range(partitions):
        _compare(f"{topic}/{partition}", archive[partition], in_kafka[partition], checked)
    _check_ledger(topic, archive, ledger, checked)
    checked.messages = sum(len(records) for records in archive.values())
    return checked


def check_text(
    client: Any, bucket: str, prefix: str, topic: str, partitions: int, bootstrap_servers: str, delimiter: bytes
) -> Checked:
    """Compare text objects with the messages that Kafka has now: the same values in the same order.

    Text has no offsets.
    """
    checked = Checked()
    archive: dict[int, list[bytes]] = defaultdict(list)
    for key in sorted(_keys(client, bucket, prefix)):
        name = _NAME.fullmatch(key.rpartition("/")[2])
        if name is None or name["extension"] != "txt":
            checked.add(FaultKind.BROKEN, 1, f"{key} is no name of a backup object of text")
            continue
        data = client.get_object(Bucket=bucket, Key=key)["Body"].read()
        *values, rest = data.split(delimiter)
        checked.add(FaultKind.BROKEN, bool(rest), f"{key} does not end with the delimiter")
        checked.objects += 1
        archive[int(name["partition"])] += values
    in_kafka = _consume(bootstrap_servers, topic, partitions)
    for partition in range(partitions):
        here, there = archive[partition], [record.value or b"" for record in in_kafka[partition]]
        missing, extra = Counter(there) - Counter(here), Counter(here) - Counter(there)
        where = f"{topic}/{partition}"
        checked.add(FaultKind.LOST, missing.total(), f"{where}: values in Kafka and not in the archive")
        repeated = sum(count for value, count in extra.items() if value in there)
        checked.add(FaultKind.REPEATED, repeated, f"{where}: values more often than in Kafka")
        checked.add(FaultKind.FOREIGN, extra.total() - repeated, f"{where}: values that Kafka does not hold")
        checked.add(FaultKind.OUT_OF_ORDER, here != there and not missing and not extra, f"{where}: another order")
        checked.messages += len(here)
    return checked


# --- the objects ---


def _read_chains(client: Any, bucket: str, prefix: str, checked: Checked) -> dict[int, list[_Object]]:
    chains: dict[int, list[_Object]] = defaultdict(list)
    for key in sorted(_keys(client, bucket, prefix)):
        name = _NAME.fullmatch(key.rpartition("/")[2])
        if name is None:
            checked.add(FaultKind.BROKEN, 1, f"{key} is no name of a backup object")
            continue
        data = client.get_object(Bucket=bucket, Key=key)["Body"].read()
        checked.objects += 1
        found = _read_object(key, int(name["first"]), data, checked)
        if found is not None:
            chains[int(name["partition"])].append(found)
    return chains


def _keys(client: Any, bucket: str, prefix: str) -> Iterator[str]:
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        yield from (entry["Key"] for entry in page.get("Contents", []))


def _read_object(key: str, first: int, data: bytes, checked: Checked) -> _Object | None:
    records: list[_Record] = []
    position, end = 0, None
    for batch in MemoryRecords(data):
        if not batch.validate_crc():
            checked.add(FaultKind.BROKEN, 1, f"{key}: wrong CRC at byte {position}")
            return None
        if batch.is_control_batch:
            checked.add(FaultKind.FOREIGN, 1, f"{key}: a control batch at byte {position}")
        position += batch.size_in_bytes
        end = batch.base_offset + batch.last_offset_delta + 1
        records += [_Record(r.offset, r.key, r.value) for r in batch] if batch.records_count else []
    if end is None or position != len(data) or end <= first:
        checked.add(FaultKind.BROKEN, 1, f"{key}: {position} of {len(data)} bytes are batches, up to offset {end}")
        return None
    return _Object(key, first, end, [r for r in records if r.offset >= first])


def _check_chain(where: str, objects: list[_Object], checked: Checked) -> list[_Record]:
    """Return the chain's messages; missing offsets and overlaps are faults."""
    if objects and objects[0].first != 0:
        checked.add(FaultKind.BROKEN, 1, f"{where}: the chain starts at offset {objects[0].first}, not 0")
    for before, after in pairwise(objects):
        if before.next != after.first:
            what = f"{where}: {before.key} ends at {before.next}, and the next object starts at {after.first}"
            checked.add(FaultKind.BROKEN, 1, what)
    records = [record for found in objects for record in found.records]
    descents = sum(b.offset <= a.offset for a, b in pairwise(records))
    checked.add(FaultKind.OUT_OF_ORDER, descents, f"{where}: offsets that do not grow")
    return records


# --- Kafka ---


def _consume(bootstrap_servers: str, topic: str, partitions: int) -> dict[int, list[_Record]]:
    found: dict[int, list[_Record]] = {number: [] for number in range(partitions)}
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"checker-{topic}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 50,
            "log_level": 0,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        left = set(range(partitions))
        deadline = time.monotonic() + _SECONDS
        while left:
            if time.monotonic() > deadline:
                raise AssertionError(f"{topic}: Kafka did not give the end of partitions {left} in {_SECONDS:.0f} s")
            for message in consumer.consume(500, timeout=0.1):
                error = message.error()
                if error is None:
                    found[message.partition()].append(_Record(message.offset(), message.key(), message.value()))
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
                elif not error.retriable():
                    raise KafkaException(error)
    finally:
        consumer.close()
    return found


def _compare(where: str, archive: list[_Record], in_kafka: list[_Record], checked: Checked) -> None:
    """Check that the archive and Kafka have the same messages, each the same number of times."""
    here, there = Counter(archive), Counter(in_kafka)
    offsets = Counter(record.offset for record in archive)
    checked.add(FaultKind.REPEATED, sum(n - 1 for n in offsets.values()), f"{where}: offsets more than once")
    missing = [record.offset for record in (there - here).elements()]
    checked.add(FaultKind.LOST, len(missing), f"{where}: in Kafka and not in the archive: offsets {_span(missing)}")
    foreign = [record.offset for record in here if record not in there]
    checked.add(FaultKind.FOREIGN, len(foreign), f"{where}: in the archive and not in Kafka: offsets {_span(foreign)}")


# --- the ledger ---


def _check_ledger(topic: str, archive: dict[int, list[_Record]], ledger: Ledger, checked: Checked) -> None:
    places = {(p, record.offset): record.key for p, records in archive.items() for record in records}
    counts = Counter(record.key for records in archive.values() for record in records)
    # An offset below 0: Kafka already had the message when the producer sent it again, and did not return its offset.
    gone = {
        key: place
        for key, place in ledger.acknowledged.items()
        if (places.get(place) != key if place[1] >= 0 else key not in counts)
    }
    what = f"{topic}: acknowledged and not there: {_some(list(gone))}"
    checked.add(FaultKind.LOST, len(gone), f"{what}, {_whereabouts(gone, places)}" if gone else what)
    twice = [k for k, n in counts.items() if n > 1 and k.decode().partition(":")[0] not in ledger.at_least_once]
    checked.add(FaultKind.REPEATED, sum(counts[k] - 1 for k in twice), f"{topic}: more than once: {_some(twice)}")
    aborted = [key for key in counts if key in ledger.aborted]
    checked.add(FaultKind.ABORTED, len(aborted), f"{topic}: of aborted transactions: {_some(aborted)}")
    known = ledger.acknowledged.keys() | ledger.unknown | ledger.aborted
    foreign = [key for key in counts if key not in known]
    checked.add(FaultKind.FOREIGN, len(foreign), f"{topic}: nobody wrote: {_some(foreign)}")
    for partition, records in archive.items():
        _check_order(f"{topic}/{partition}", records, ledger, checked)


def _check_order(where: str, records: list[_Record], ledger: Ledger, checked: Checked) -> None:
    """Check that the numbers of a producer that does not repeat messages grow with the offsets."""
    last: dict[str, int] = {}
    for record in records:
        name, _, number = record.key.decode().partition(":")
        if name in ledger.at_least_once:
            continue
        if int(number) <= last.get(name, -1):
            checked.add(FaultKind.OUT_OF_ORDER, 1, f"{where}: {record.key!r} at offset {record.offset}")
        last[name] = int(number)


def _span(offsets: list[int]) -> str:
    return f"{min(offsets)}–{max(offsets)}" if offsets else ""


def _whereabouts(gone: dict[bytes, tuple[int, int]], places: dict[tuple[int, int], bytes]) -> str:
    key = min(gone)
    found = [place for place, there in places.items() if there == key]
    return f"the first was acknowledged at {gone[key]}, holds {places.get(gone[key])!r} there, and is at {found}"


def _some(keys: list[bytes]) -> str:
    return ", ".join(key.decode() for key in sorted(keys)[:3])
