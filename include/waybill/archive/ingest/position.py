"""The position of the commit protocol in the log of a topic-partition."""

from __future__ import annotations

from dataclasses import dataclass

from waybill.services.coordination import CommittedOffset
from waybill.services.kafka.kafka import LogRange


@dataclass(frozen=True, slots=True)
class Position:
    """The position of the protocol in a topic-partition. Each step takes a position and returns the next one."""

    committed: CommittedOffset
    log_range: LogRange
    """The range of the log at the last request to the source."""
    topic_id: str
    """The topic's id at that time; '' if the source did not report one."""
    skips_epoch_check: bool = False
    """True after an accepted truncation, until the first object of the new log: fetches do not name the leader epoch of
    the last archived batch, which belongs to the old log."""
