"""The position of the commit protocol in the log of a topic-partition."""

from __future__ import annotations

from dataclasses import dataclass

from waybill.services.coordination import CommittedOffset
from waybill.services.kafka.kafka import LogRange


@dataclass(frozen=True, slots=True)
class Position:
    """Where the protocol stands in a topic-partition. Each step takes a position and returns the next one."""

    committed: CommittedOffset
    log_range: LogRange
    """The range that the log had when the source was asked last."""
    topic_id: str
    """The topic's id at that time; '' if the source did not report one."""
    skips_epoch_check: bool = False
    """True after an accepted truncation, until the first object of the new log: fetches do not name the leader epoch of
    the last archived batch, which belongs to the old log."""
