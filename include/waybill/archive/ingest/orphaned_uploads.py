"""Orphaned uploads: multipart uploads of lanes that were killed.

Listings of objects do not show them, but S3 charges for them.

Aborting an upload removes nothing from the archive: an object exists only when its upload is completed. A running lane
whose upload is aborted would fail, and the next lane would fetch the same batches again. To prevent this, only uploads
that are older than the longest run of a lane are aborted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta

from waybill.archive.ingest.time_slice import Clock
from waybill.base.errors import WaybillError
from waybill.config.models import Config
from waybill.services.coordination import Coordinator
from waybill.services.store import ChainId, PendingUpload, Store

logger = logging.getLogger(__name__)

_CHORE = "abort_uploads"
_INTERVAL = timedelta(hours=1)

IsWanted = Callable[[ChainId], bool]


def abort_orphaned_uploads(
    coordinator: Coordinator, store: Store, config: Config, stream_name: str, clock: Clock
) -> None:
    """Abort a stream's orphaned uploads, once an hour. Nothing depends on it, so an error is only logged."""
    try:
        if coordinator.claim_chore(_CHORE, _INTERVAL):
            now = datetime.fromtimestamp(clock.wall(), UTC)
            before = now - config.storage.abort_uploads_after
            abort_old_uploads(store, store.pending_uploads(), before, belongs_to_stream(config, stream_name))
    except WaybillError as error:
        logger.warning("the uploads of killed lanes could not be aborted: %s", error)


def belongs_to_stream(config: Config, stream_name: str) -> IsWanted:
    """Return a function that returns whether a chain is one of the stream's, in its present generation."""
    stream = config.stream(stream_name)
    return lambda chain: chain.generation == stream.generation and stream.matches(chain.tp.topic)


def abort_old_uploads(
    store: Store, pending: Iterable[PendingUpload], before: datetime, is_wanted: IsWanted
) -> list[PendingUpload]:
    """Abort the uploads of `pending` that were begun before a time and whose chain is wanted. Return them."""
    old = [upload for upload in pending if upload.begun < before and is_wanted(upload.chain)]
    aborted = [upload for upload in old if store.abort_upload(upload)]
    if aborted:
        logger.info(
            "aborted %d uploads that were never completed, of %d topic-partitions, the oldest of %s: %s",
            *(len(aborted), len({upload.chain for upload in aborted})),
            *(f"{min(upload.begun for upload in aborted):%Y-%m-%d %H:%M:%S%z}", aborted[0].key),
        )
    return aborted
