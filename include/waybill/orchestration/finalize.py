"""The task `finalize`: what the finalizer found, in the log, and a failure if an hour cannot become final."""

from __future__ import annotations

import logging

from waybill.config import Config
from waybill.errors import HoursBlocked
from waybill.partition.files_sink.finalize import finalize

__all__ = ["finalize_hours"]

log = logging.getLogger(__name__)

_NAMED = 5


def finalize_hours(config: Config, stream: str) -> None:
    """Mark the hours of a stream that are final.

    Raises `HoursBlocked` when a directory does not hold what the ledger lists, and what `finalize` raises.
    """
    found = finalize(config, stream)
    for note in found.notes:
        log.warning("%s: %s", stream, note)
    for key in found.removed:
        log.info("%s: removed %s, of a plan that came to nothing", stream, key)
    log.info("%s", found)
    if found.blocked:
        named = "; ".join(
            f"{hour.period}: {len(hour.missing)} files missing, {len(hour.strays)} not listed"
            for hour in found.blocked[:_NAMED]
        )
        raise HoursBlocked(
            f"{stream}: {len(found.blocked):,} hours are not what the ledger lists, and are not final before they are "
            f"({named}). What exactly: waybill finalize {stream} --dry-run"
        )
