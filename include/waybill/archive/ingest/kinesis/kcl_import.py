"""Start the archive of a Kinesis stream where a consumer with the Kinesis Client Library stopped.

Each lease becomes the start of its shard, recorded as the assignment that a plan would make. So it works only before
the first run of the stream. Nothing is lost: where the checkpoint is within a KPL aggregate, the whole aggregate is
archived again, and the proposal states how many of its user records the other consumer had read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime

from waybill.archive.ingest.kinesis.shard_starts import find_stream_origin, record_shard_start, record_stream_origin
from waybill.archive.ingest.kinesis.slot_assignment import initial_position
from waybill.archive.ingest.kinesis.slot_source import SlotSource, creation_id, start_of
from waybill.archive.ingest.target import IngestServices
from waybill.base.decision import Decision
from waybill.base.errors import ConfigError, GapRefused
from waybill.config.models import Stream
from waybill.records.shards.checkpoint import PositionKind, ShardPosition
from waybill.records.shards.lineage import Shard, parents_first
from waybill.records.shards.slot_map import Assignment, SlotMap, StreamOrigin, choose_slot
from waybill.services.kinesis.aggregates import DamagedAggregate, unpack
from waybill.services.kinesis.kcl_leases import Lease
from waybill.services.kinesis.shard_reader import ShardReader


@dataclass(frozen=True, slots=True)
class ShardImport:
    """Where the archive of one shard begins."""

    shard_id: str
    checkpoint: str
    """The checkpoint of the lease; '' if the shard has no lease."""
    position: ShardPosition | None
    """None: the shard has no lease, so it waits for its parents or starts according to the config."""
    repeated: int = 0
    """User records of an aggregate that the other consumer had read and that are archived again."""


def propose_lease_imports(services: IngestServices, topic: str, leases: Iterable[Lease]) -> list[ShardImport]:
    """Return the proposed import of each shard that Kinesis lists or that has a lease, sorted by id.

    Raises `GapRefused` if the archive of the stream has begun, and `ConfigError` if no lease belongs to the stream.
    """
    slots = _slots(services)
    if find_stream_origin(services.store, topic, services.coordinator.paths.generation) is not None:
        raise GapRefused(
            f"{topic}: its archive has begun in generation {services.coordinator.paths.generation}, and a shard never "
            f"changes where it starts. Raise the stream's generation to import checkpoints"
        )
    listed = slots.listed_shards(topic)
    own = {each.shard_id: each for each in leases if each.stream in ("", topic)}
    if not own.keys() & listed.keys():
        raise ConfigError(
            f"{topic}: Kinesis lists none of the {len(own)} shards of the lease table: is it another stream's?"
        )
    done = _ancestors(own.keys(), listed) - own.keys()
    found = []
    for shard_id in sorted(listed):
        if shard_id in own:
            found.append(_proposal(slots, topic, own[shard_id]))
        elif shard_id in done:
            # The library removes the lease of a shard that it has read to its end.
            found.append(ShardImport(shard_id, "", ShardPosition.trim_horizon().at_shard_end()))
        else:
            found.append(ShardImport(shard_id, "", None))
    return found


def import_leases(
    services: IngestServices, stream: Stream, topic: str, proposals: Sequence[ShardImport], decision: Decision
) -> None:
    """Record where the shards start. Raises `GapRefused` if a run has begun the archive in the meantime."""
    slots, generation = _slots(services), stream.generation
    listed, description = slots.listed_shards(topic), slots.description(topic)
    now = datetime.now(UTC)
    now_ms = int(now.timestamp() * 1000)
    origin = StreamOrigin(
        creation_id(description),
        now_ms,
        frozenset(listed),
        initial_position(topic, start_of(stream), now_ms, description.retention),
        f"{decision.reason} (by {decision.by}, {now:%Y-%m-%dT%H:%M:%SZ})",
    )
    slot_map = SlotMap(origin)
    starts = {each.shard_id: each.position for each in proposals if each.position is not None}
    planned = []
    for shard in parents_first(listed):
        start = starts.get(shard.shard_id)
        if start is not None:
            slot = choose_slot(shard.parents, stream.kinesis.slots, slot_map, {})
            start = start.caught_up(-1 if start.is_ended else now_ms)
            planned.append(Assignment(shard.shard_id, slot, start, shard.parents, origin.creation_id, now_ms))
            slot_map = slot_map.extended(planned[-1:])
    if record_stream_origin(services.store, topic, generation, origin) != origin:
        raise GapRefused(f"{topic}: another run has begun its archive. Raise the stream's generation to import")
    for each in planned:
        record_shard_start(services.store, topic, generation, each)


def _slots(services: IngestServices) -> SlotSource:
    if not isinstance(services.source, SlotSource):
        raise ConfigError("--from-kcl is for streams with `source: kinesis`")
    return services.source


def _ancestors(shard_ids: Collection[str], listed: Mapping[str, Shard]) -> set[str]:
    found: set[str] = set()
    waiting = [parent for each in shard_ids if each in listed for parent in listed[each].parents]
    while waiting:
        shard_id = waiting.pop()
        if shard_id in listed and shard_id not in found:
            found.add(shard_id)
            waiting += listed[shard_id].parents
    return found


def _proposal(slots: SlotSource, topic: str, lease: Lease) -> ShardImport:
    match lease.checkpoint:
        case "SHARD_END":
            position = ShardPosition.trim_horizon().at_shard_end()
        case "TRIM_HORIZON":
            position = ShardPosition.trim_horizon()
        case "LATEST":
            position = ShardPosition.at_timestamp(int(datetime.now(UTC).timestamp() * 1000))
        case "AT_TIMESTAMP":
            raise ConfigError(
                f"{topic}: the lease of shard {lease.shard_id} is at AT_TIMESTAMP, and the table does not hold the "
                f"time. Let the other consumer read one record of the shard, or start the stream at a time by `start`"
            )
        case sequence if sequence.isdecimal():
            return _at_record(slots, topic, lease)
        case other:
            raise ConfigError(f"{topic}: the lease of shard {lease.shard_id} has the unknown checkpoint {other!r}")
    return ShardImport(lease.shard_id, lease.checkpoint, position)


def _at_record(slots: SlotSource, topic: str, lease: Lease) -> ShardImport:
    """Find out whether the record of the checkpoint is an aggregate that was read in part."""
    at_record = ShardPosition.at_sequence(lease.checkpoint)
    after_record = ShardPosition(PositionKind.AFTER_SEQUENCE, lease.checkpoint)
    reader: ShardReader = slots.reader(topic, lease.shard_id, max_records=1)
    with closing(reader.read(at_record)) as reads:
        record = next((each.records[0] for each in reads if each.records), None)
    if record is None or str(record.sequence_number) != lease.checkpoint:
        return ShardImport(lease.shard_id, lease.checkpoint, after_record)  # retention has removed it
    try:
        aggregated = unpack(record.data)
    except DamagedAggregate:
        aggregated = None
    if aggregated is None or lease.sub_sequence + 1 >= len(aggregated):
        return ShardImport(lease.shard_id, lease.checkpoint, after_record)
    return ShardImport(lease.shard_id, lease.checkpoint, at_record, repeated=lease.sub_sequence + 1)
