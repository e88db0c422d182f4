"""Multipart uploads that lanes left behind when they were killed: invisible, and paid for until somebody aborts them.

Aborting one takes nothing from the archive: what an upload holds is no object until it completes. An upload of a lane
that still runs would fail with it and be fetched again by the next; so that this does not happen, only uploads are
aborted that are older than any lane runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta

from waybill.config import Config
from waybill.coordination import Coordinator
from waybill.errors import WaybillError
from waybill.ingest.turn import Clock
from waybill.store import Chain, PendingUpload, Store

__all__ = ["abort_orphans", "of_stream", "sweep"]

logger = logging.getLogger(__name__)

_CHORE = "abort_uploads"
_EVERY = timedelta(hours=1)

Belongs = Callable[[Chain], bool]


def of_stream(config: Config, stream_name: str) -> Belongs:
    """Whether a chain is one of the stream's own, in its present generation."""
    stream = config.stream(stream_name)
    return lambda chain: chain.generation == stream.generation and stream.matches(chain.tp.topic)


def sweep(coordinator: Coordinator, store: Store, config: Config, stream_name: str, clock: Clock) -> None:
    """Abort a stream's orphaned uploads, once an hour. What goes wrong is a warning: nothing else rests on it."""
    try:
        if coordinator.claim_chore(_CHORE, _EVERY):
            now = datetime.fromtimestamp(clock.wall(), UTC)
            before = now - config.storage.abort_uploads_after
            abort_orphans(store, store.pending_uploads(), before, of_stream(config, stream_name))
    except WaybillError as error:
        logger.warning("uploads that killed lanes left behind could not be aborted: %s", error)


def abort_orphans(
    store: Store, pending: Iterable[PendingUpload], before: datetime, belongs: Belongs
) -> list[PendingUpload]:
    """Abort those of `pending` that were begun before that time and belong; which they were."""
    old = [upload for upload in pending if upload.begun < before and belongs(upload.chain)]
    aborted = [upload for upload in old if store.abort_upload(upload)]
    if aborted:
        logger.info(
            "aborted %d uploads that were never completed, of %d topic-partitions, the oldest of %s: %s",
            *(len(aborted), len({upload.chain for upload in aborted})),
            *(f"{min(upload.begun for upload in aborted):%Y-%m-%d %H:%M:%S%z}", aborted[0].key),
        )
    return aborted
