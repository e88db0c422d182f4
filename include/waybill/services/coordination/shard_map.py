"""The copy of a slot map in ZooKeeper, so that a plan lists S3 only if there are new shards.

The copy is only a cache: S3 holds each assignment. A copy that is missing, damaged, or older than S3 only costs a
listing. The map is stored compressed, since ZooKeeper refuses nodes above one megabyte: the ids of shards differ
little, so about 40,000 assignments fit.
"""

from __future__ import annotations

import base64
import json
import logging
import zlib
from dataclasses import dataclass

from waybill.base.documents import compact
from waybill.base.errors import DocumentDamaged
from waybill.records.shards.slot_map import SlotMap
from waybill.services.coordination.nodes import NODE
from waybill.services.coordination.paths import ZkPaths
from waybill.services.coordination.session import NodeConflict, ZooKeeperSession

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredSlotMap:
    """The copy of a slot map, and the version of its node."""

    slot_map: SlotMap | None
    """None if there is no node, or if it is damaged."""
    version: int
    """-1 if there is no node."""


def read_slot_map_copy(session: ZooKeeperSession, paths: ZkPaths, topic: str) -> StoredSlotMap:
    """Return the copy of a topic's slot map. A damaged one is logged and counts as missing.

    Raises `DocumentTooNew` for a copy of a newer version of Waybill, and `CoordinationUnavailable`.
    """
    path = paths.slot_map(topic)
    node = session.get(path)
    if node is None:
        return StoredSlotMap(None, -1)
    data, version = node
    try:
        return StoredSlotMap(_parse(data, path), version)
    except DocumentDamaged as error:
        logger.warning("%s. This plan does so", error)
        return StoredSlotMap(None, version)


def write_slot_map_copy(
    session: ZooKeeperSession, paths: ZkPaths, topic: str, slot_map: SlotMap, version: int
) -> int | None:
    """Replace the copy whose version was read (-1: there was none). Return the new version.

    Return None if the node has another version by now: another plan has written it. Raises `CoordinationUnavailable`.
    """
    packed = base64.b64encode(zlib.compress(compact(slot_map.to_fields()), 9))
    try:
        return session.write(
            paths.slot_map(topic), NODE.write({"shards": len(slot_map.assignments), "map": packed.decode()}), version
        )
    except NodeConflict:
        return None


def _parse(data: bytes, path: str) -> SlotMap:
    return NODE.parse(path, data, lambda fields: SlotMap.of_fields(json.loads(_unpacked(fields["map"]))))


def _unpacked(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text, validate=True))
