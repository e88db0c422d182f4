"""What a lane grants one run over one topic-partition."""

from __future__ import annotations

import math
from dataclasses import dataclass

from waybill.errors import GenerationConflict
from waybill.ingest.limit import RateLimit
from waybill.log.recompress import Recompressor
from waybill.sources.kafka import Sight

__all__ = ["Turn"]


@dataclass(frozen=True, slots=True)
class Turn:
    """Times are seconds of the clock's `monotonic`."""

    deadline: float
    """When fetching ends. What the upload policy does not allow to complete by then is fetched again by a later run."""
    yields_at: float = math.inf
    """From then on the run ends behind the next object that it cuts, so no work is lost: others wait."""
    limit: RateLimit | None = None
    """The lane's."""
    recompressor: Recompressor | None = None
    """None: batches are archived as they are."""
    seen: Sight | None = None
    """What Kafka said when the lane began, asked for all of its topic-partitions at once; None: ask."""
    conflict: GenerationConflict | None = None
    """Why nothing may be archived: another stream writes the same chain."""
    has_stop: bool = True
    """Whether a stop of this topic-partition may be journaled."""
