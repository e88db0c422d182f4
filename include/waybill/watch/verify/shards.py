"""Check that the archive of a Kinesis stream is complete: compare the objects of its slots with the slot map.

Each object states which sequence numbers of which shards it covers (`records.shards.checkpoint_batch`). A shard is
archived whole if the objects of one slot cover it without a break, and if it began after its parents had ended.
"""

from __future__ import annotations

from collections.abc import Mapping

from waybill.archive.ingest.kinesis.shard_starts import find_stream_origin, read_slot_map
from waybill.base.errors import WaybillError
from waybill.config.names import TopicPartition
from waybill.records.shards.checkpoint import Checkpoint
from waybill.records.shards.slot_map import SlotMap
from waybill.services.store import Store
from waybill.watch.verify.archive import CheckedArchive, CheckedChain
from waybill.watch.verify.verify_report import FaultKind, VerifyFault, VerifyReport


def check_shards(store: Store, generation: int, archive: CheckedArchive, report: VerifyReport) -> None:
    """Add faults of the shards of all Kinesis streams in a checked archive.

    Run it after the archive was read: a shard whose records are archived has its slot in the slot map by then.
    """
    by_topic: dict[str, list[CheckedChain]] = {}
    for tp, chain in archive.items():
        if any(each.slot_state is not None for each in chain.objects):
            by_topic.setdefault(tp.topic, []).append(chain)
    for topic, chains in by_topic.items():
        try:
            _check_topic(store, generation, topic, chains, report)
        except WaybillError:
            raise
        except Exception as error:
            report.add_unexpected(f"the check of the shards of {topic}", error)


def _check_topic(store: Store, generation: int, topic: str, chains: list[CheckedChain], report: VerifyReport) -> None:
    origin = find_stream_origin(store, topic, generation)
    if origin is None:
        report.add_fault(_fault(chains[0].tp, "the slot map", "its origin is missing in S3"))
        return
    slot_map = read_slot_map(store, topic, generation, SlotMap(origin))
    report.figures.shards += len(slot_map.assignments)
    last = {chain.tp.partition: _check_chain(chain, slot_map, report) for chain in chains}
    _check_lineage(topic, slot_map, last, report)


def _check_chain(chain: CheckedChain, slot_map: SlotMap, report: VerifyReport) -> Checkpoint:
    """Check that the objects of a slot cover each shard without a break. Return the last checkpoint."""
    tp, last = chain.tp, Checkpoint()
    archived_to: dict[str, str] = {}
    """The last sequence number of each shard, '' before the first one."""
    follows_damage = False
    for each in chain.objects:
        state = each.slot_state
        if state is None:
            follows_damage = True
            if not each.damaged and not each.is_gap_marker:
                report.add_fault(_fault(tp, each.key, "it has no checkpoint batch", each.first_offset))
            continue
        for shard_id, covered in state.covered.items():
            assignment = slot_map.assignments.get(shard_id)
            if assignment is None or assignment.slot != tp.partition:
                owner = "no slot" if assignment is None else f"slot {assignment.slot}"
                what = f"it covers shard {shard_id}, which is assigned to {owner}"
                report.add_fault(_fault(tp, each.key, what, each.first_offset))
            before = archived_to.get(shard_id, "")
            if covered.after_sequence != before and not follows_damage and not each.is_gap_marker:
                what = (
                    f"it covers shard {shard_id} after {covered.after_sequence or 'its start'}, but the objects before "
                    f"end at {before or 'its start'}"
                )
                report.add_fault(_fault(tp, each.key, what, each.first_offset))
        archived_to = {shard_id: at.sequence for shard_id, at in state.checkpoint.positions.items()}
        last, follows_damage = state.checkpoint, False
    return last


def _check_lineage(topic: str, slot_map: SlotMap, last: Mapping[int, Checkpoint], report: VerifyReport) -> None:
    """Check that the parents of each shard that was read have ended."""
    for slot, checkpoint in sorted(last.items()):
        for shard_id in sorted(checkpoint.positions):
            assignment = slot_map.assignments.get(shard_id)
            for parent in () if assignment is None else assignment.parents:
                owner = slot_map.assignments.get(parent)
                position = None if owner is None else last.get(owner.slot, Checkpoint()).position(parent)
                if position is not None and not position.is_ended:
                    what = f"shard {shard_id} is archived, but its parent {parent} is not archived to its end"
                    report.add_fault(_fault(TopicPartition(topic, slot), "the slot map", what))


def _fault(tp: TopicPartition, where: str, what: str, first_offset: int | None = None) -> VerifyFault:
    return VerifyFault(FaultKind.SHARD, where, tp, first_offset, None, what)
