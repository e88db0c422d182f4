"""Check the archive of a Kinesis stream without any code of Waybill.

boto3 reads the stream shard by shard, and AWS's own library unpacks aggregates. kafka-python's parser reads the
objects. Each user record of Kinesis must be in the archive once, and nothing else may be. The records of a partition
key must have the order of the shards' lineage, and then of the sequence numbers.

The order of the archive is that in which S3 created the objects, and the offsets within an object.
"""

from __future__ import annotations

import base64
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from aws_kinesis_agg.deaggregator import iter_deaggregate_records
from chaos.checker import Checked, FaultKind
from kafka.record.memory_records import MemoryRecords

_NAME = re.compile(r"(?P<generation>\d+)_(?P<slot>\d+)_(?P<first>\d{20})\.kafka")
_EMPTY_ANSWERS = 20
"""After this number of answers without records in a row, the tip of an open shard is reached."""


class Identity(NamedTuple):
    """The identity of a user record."""

    shard_id: str
    sequence: int
    sub_sequence: int
    """Its position in an aggregate; 0 for a record that is none."""


class ArchivedRecord(NamedTuple):
    """One message of the archive."""

    offset: int
    identity: Identity
    key: bytes | None
    value: bytes | None


@dataclass
class Object:
    """One backup object: its slot, its range of offsets, and its messages."""

    key: str
    slot: int
    first: int
    next: int
    records: list[ArchivedRecord] = field(default_factory=list)


@dataclass(frozen=True)
class ShardTruth:
    """One shard as Kinesis holds it."""

    parents: tuple[str, ...]
    records: Mapping[Identity, tuple[bytes, bytes]]
    """Key and data of each user record, in their order."""


@dataclass(frozen=True)
class Truth:
    """The content of the Kinesis stream."""

    shards: Mapping[str, ShardTruth]

    @property
    def in_lineage_order(self) -> list[str]:
        """The shards, each after its parents."""
        order: dict[str, None] = {}

        def visit(shard_id: str) -> None:
            if shard_id not in order and shard_id in self.shards:
                for parent in self.shards[shard_id].parents:
                    visit(parent)
                order[shard_id] = None

        for shard_id in sorted(self.shards):
            visit(shard_id)
        return list(order)


# --- Kinesis ---


def read_kinesis(client: Any, stream: str) -> Truth:
    """Read every shard from its first record to its tip or end."""
    listed, page = [], {"StreamName": stream}
    while page:
        answer = client.list_shards(**page)
        listed += answer["Shards"]
        page = {"NextToken": answer["NextToken"]} if answer.get("NextToken") else {}
    shards = {}
    for shard in listed:
        parents = tuple(shard[name] for name in ("ParentShardId", "AdjacentParentShardId") if shard.get(name))
        shards[shard["ShardId"]] = ShardTruth(parents, _read_shard(client, stream, shard["ShardId"]))
    return Truth(shards)


def _read_shard(client: Any, stream: str, shard_id: str) -> dict[Identity, tuple[bytes, bytes]]:
    start = {"StreamName": stream, "ShardId": shard_id, "ShardIteratorType": "TRIM_HORIZON"}
    iterator = client.get_shard_iterator(**start)["ShardIterator"]
    found: dict[Identity, tuple[bytes, bytes]] = {}
    empty = 0
    while iterator and empty < _EMPTY_ANSWERS:
        answer = client.get_records(ShardIterator=iterator, Limit=10_000)
        for record in answer["Records"]:
            found.update(_user_records(shard_id, record))
        iterator = answer.get("NextShardIterator")
        empty = 0 if answer["Records"] else empty + 1
        if empty and answer["MillisBehindLatest"] == 0:
            break
    return found


def _user_records(shard_id: str, record: Mapping[str, Any]) -> Iterable[tuple[Identity, tuple[bytes, bytes]]]:
    for part in iter_deaggregate_records([record], data_format="Boto3"):
        fields = part.get("kinesis", part)
        position, data = fields.get("subSequenceNumber"), fields["data"]
        is_part = position is not None
        identity = Identity(shard_id, int(record["SequenceNumber"]), int(position) if is_part else 0)
        yield identity, (fields["partitionKey"].encode(), base64.b64decode(data) if is_part else data)


# --- the archive ---


def read_archive(
    client: Any, bucket: str, prefix: str, created: Sequence[str], checked: Checked
) -> tuple[list[Object], dict[int, list[Object]]]:
    """Return all objects in the order of their creation, and the chain of each slot. `created`: keys, in that order."""
    ranks = {key: rank for rank, key in enumerate(created)}
    chains: dict[int, list[Object]] = defaultdict(list)
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for entry in page.get("Contents", []):
            found = _read_object(client, bucket, entry["Key"], checked)
            if found is not None:
                chains[found.slot].append(found)
                if found.key not in ranks:
                    checked.add(FaultKind.BROKEN, 1, f"{found.key}: S3's proxy did not see its creation")
    for slot, chain in chains.items():
        chain.sort(key=lambda each: each.first)
        _check_chain(slot, chain, ranks, checked)
    objects = sorted((each for chain in chains.values() for each in chain), key=lambda each: ranks.get(each.key, -1))
    checked.objects = len(objects)
    checked.messages = sum(len(each.records) for each in objects)
    return objects, dict(chains)


def _read_object(client: Any, bucket: str, key: str, checked: Checked) -> Object | None:
    name = _NAME.fullmatch(key.rpartition("/")[2])
    if name is None:
        checked.add(FaultKind.BROKEN, 1, f"{key} is no name of a backup object")
        return None
    data = client.get_object(Bucket=bucket, Key=key)["Body"].read()
    found = Object(key, int(name["slot"]), int(name["first"]), int(name["first"]))
    position = 0
    for batch in MemoryRecords(data):
        if not batch.validate_crc():
            checked.add(FaultKind.BROKEN, 1, f"{key}: wrong CRC at byte {position}")
            return None
        if batch.base_offset != found.next:
            what = f"{key}: the batch at byte {position} starts at offset {batch.base_offset}, not {found.next}"
            checked.add(FaultKind.BROKEN, 1, what)
        position += batch.size_in_bytes
        found.next = batch.base_offset + batch.last_offset_delta + 1
        if batch.records_count:
            found.records += [ArchivedRecord(r.offset, _identity(r.headers), r.key, r.value) for r in batch]
    if position != len(data) or found.next <= found.first:
        checked.add(FaultKind.BROKEN, 1, f"{key}: {position} of {len(data)} bytes are batches")
        return None
    return found


def _identity(headers: Iterable[tuple[str, bytes]]) -> Identity:
    named = dict(headers)
    position = int(named.get("kinesis.sub_sequence_number", b"0"))
    return Identity(named["kinesis.shard_id"].decode(), int(named["kinesis.sequence_number"]), position)


def _check_chain(slot: int, chain: Sequence[Object], ranks: Mapping[str, int], checked: Checked) -> None:
    if chain[0].first != 0:
        checked.add(FaultKind.BROKEN, 1, f"slot {slot}: the chain starts at offset {chain[0].first}, not 0")
    for before, after in pairwise(chain):
        if before.next != after.first:
            what = f"slot {slot}: {before.key} ends at {before.next}, and the next object starts at {after.first}"
            checked.add(FaultKind.BROKEN, 1, what)
        if ranks.get(before.key, -1) > ranks.get(after.key, -1):
            checked.add(FaultKind.BROKEN, 1, f"slot {slot}: {after.key} was created before {before.key}")


# --- the comparison ---


def compare(
    objects: Sequence[Object],
    truth: Truth,
    acknowledged: Collection[tuple[str, int, bytes]],
    checked: Checked,
) -> None:
    """Compare objects, in the order of their creation, with Kinesis and with the logs of producers.

    `acknowledged`: shard, sequence number and data (of a user record) of each record that Kinesis has acknowledged.
    """
    archive = [record for each in objects for record in each.records]
    held = {identity: content for shard in truth.shards.values() for identity, content in shard.records.items()}
    counts = Counter(record.identity for record in archive)
    lost = [identity for identity in held if identity not in counts]
    checked.add(FaultKind.LOST, len(lost), f"in Kinesis and not in the archive: {_some(lost)}")
    repeated = [identity for identity, count in counts.items() if count > 1]
    extra = sum(counts[identity] - 1 for identity in repeated)
    checked.add(FaultKind.REPEATED, extra, f"in the archive more than once: {_some(repeated)}")
    foreign = [r.identity for r in archive if held.get(r.identity) != (r.key, r.value)]
    checked.add(FaultKind.FOREIGN, len(foreign), f"not, or otherwise, in Kinesis: {_some(foreign)}")
    there = {(r.identity.shard_id, r.identity.sequence, r.value) for r in archive}
    gone = [place for place in acknowledged if place not in there]
    checked.add(FaultKind.LOST, len(gone), f"acknowledged and not in the archive: {gone[:3]}")
    _check_order(archive, truth, checked)
    _check_slots(objects, checked)


def _check_order(archive: Sequence[ArchivedRecord], truth: Truth, checked: Checked) -> None:
    """The records of each key have the order of lineage and sequence numbers."""
    order: dict[Identity, int] = {}
    for shard_id in truth.in_lineage_order:
        for identity in truth.shards[shard_id].records:
            order[identity] = len(order)
    last: dict[bytes | None, int] = {}
    wrong = []
    for record in archive:
        place = order.get(record.identity)
        if place is None:
            continue
        if place < last.get(record.key, -1):
            wrong.append(record.identity)
        last[record.key] = max(place, last.get(record.key, -1))
    checked.add(FaultKind.OUT_OF_ORDER, len(wrong), f"behind later records of their key: {_some(wrong)}")


def _check_slots(objects: Sequence[Object], checked: Checked) -> None:
    """Check that each shard is in only one slot."""
    slots: dict[str, set[int]] = defaultdict(set)
    for each in objects:
        for record in each.records:
            slots[record.identity.shard_id].add(each.slot)
    for shard_id, found in sorted(slots.items()):
        checked.add(FaultKind.BROKEN, len(found) > 1, f"{shard_id} is in the slots {sorted(found)}")


def _some(identities: Sequence[Identity]) -> str:
    return ", ".join(f"{each.shard_id} {each.sequence}/{each.sub_sequence}" for each in sorted(identities)[:3])
