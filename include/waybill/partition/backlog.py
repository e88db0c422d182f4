"""What of a stream's archive has not been turned into rows yet: its chains from the progress on."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from waybill import chain
from waybill.chain import ChainObject
from waybill.config import Config, Stream
from waybill.coordination import Committed, Coordinator
from waybill.errors import ChainBroken, ConnectionMissing, CoordinationUnavailable
from waybill.names import TopicPartition
from waybill.store import Store

__all__ = ["committed_offsets", "list_chains"]

log = logging.getLogger(__name__)

_LISTING_THREADS = 8


def list_chains(
    store: Store, stream: Stream, start: Mapping[TopicPartition, int], committed: Mapping[TopicPartition, Committed]
) -> tuple[dict[TopicPartition, list[ChainObject]], list[str]]:
    """The objects of all of the stream's chains that hold offsets at or after `start`, and what is broken.

    A chain is listed up to where it is broken. `committed`: what is known of the committed offsets, which saves reading
    each chain's last object for its end, and says where it began; read before this call.
    """
    topics = [topic for topic in store.topics() if stream.matches(topic)]
    with ThreadPoolExecutor(_LISTING_THREADS) as pool:
        found = [c.tp for chains in pool.map(store.chains, topics) for c in chains if c.generation == stream.generation]
        tps = sorted({*found, *start})
        walked = list(pool.map(lambda tp: _walk(store, stream.generation, tp, start.get(tp), committed.get(tp)), tps))
    objects = {tp: found for tp, (found, _) in zip(tps, walked, strict=True)}
    return objects, [fault for _, fault in walked if fault]


def _walk(
    store: Store, generation: int, tp: TopicPartition, start: int | None, committed: Committed | None
) -> tuple[list[ChainObject], str]:
    objects: list[ChainObject] = []
    offset = None
    if committed is not None:
        offset = committed.committed_offset
        start = committed.start_offset if start is None else start
    try:
        objects.extend(chain.walk(store, generation, tp, from_offset=start, committed_offset=offset))
    except ChainBroken as error:
        return objects, str(error)
    return objects, ""


def committed_offsets(config: Config, name: str) -> dict[TopicPartition, Committed]:
    """The committed offsets, or none if ZooKeeper cannot be asked: the chains say the same, for more reading."""
    try:
        with Coordinator.of(config, name) as coordinator:
            return coordinator.list_committed()
    except (CoordinationUnavailable, ConnectionMissing) as error:
        log.warning("going on without the committed offsets: %s", error)
        return {}
