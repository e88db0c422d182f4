"""Which of a batch's rows repeat another: the definition of a duplicate, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from waybill.dedup.candidates import Candidates
from waybill.log._kernels import Array

__all__ = ["Seen", "Verdicts", "judge"]


@dataclass(frozen=True, slots=True)
class Seen:
    """What the index knows of the candidates' keys: of each the latest kept row that arrived at or after the horizon.

    At most one entry for a candidate; an entry for one of a key's candidates is enough for all of them.
    """

    candidate: Array
    """int64: index of a candidate of that key."""
    arrived_ms: Array
    """int64: when the kept row arrived, epoch ms."""
    tp: Array
    """int32: its topic-partition, in the same numbers as the candidates'; more than these occur, if it is older."""
    offset: Array
    """int64: its offset."""

    @classmethod
    def nothing(cls) -> Seen:
        """No key was seen before."""
        none = np.empty(0, np.int64)
        return cls(none, none, np.empty(0, np.int32), none)


@dataclass(frozen=True, slots=True)
class Verdicts:
    """For each candidate: kept or not, and where a row that is not kept was first seen."""

    kept: Array
    """bool"""
    first_tp: Array
    """int32, valid where not kept, as is all that follows."""
    first_offset: Array
    """int64"""
    first_arrived_ms: Array
    """int64"""


def judge(candidates: Candidates, seen: Seen, window_ms: int, horizon_ms: int) -> Verdicts:
    """Which candidates are kept."""
    raise NotImplementedError
