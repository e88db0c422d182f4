"""The rows that a sweep judges: one row each of plain numbers, without their key or message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from waybill.log._kernels import Array

__all__ = ["UNBOUNDED_MS", "Candidates", "arrivals_ms"]

UNBOUNDED_MS = int(np.iinfo(np.int64).min)
"""As a lower bound of arrival, or as a horizon: none."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Rows with a key, column by column; all arrays are of one length, and nobody changes them."""

    hi: Array
    """uint64: half of the key's hash."""
    lo: Array
    """uint64: the other half."""
    arrived_ms: Array
    """int64: arrival, epoch ms."""
    tp: Array
    """int32: ordinal in the plan's sorted list of topic-partitions."""
    offset: Array
    """int64: Kafka's offset."""
    file: Array
    """int32: ordinal in the plan's list of files."""
    row: Array
    """int64: row of that file, from 0."""

    def __len__(self) -> int:
        return len(self.hi)

    @classmethod
    def empty(cls) -> Candidates:
        """No row at all."""
        raise NotImplementedError

    def take(self, indices: Array) -> Candidates:
        """The rows of these indices (or where this mask is true), in that order."""
        raise NotImplementedError

    @staticmethod
    def concat(parts: Sequence[Candidates]) -> Candidates:
        """All of them, one after the other; none for none."""
        raise NotImplementedError

    def to_bytes(self) -> bytes:
        """As an Arrow IPC stream of one record batch, uncompressed."""
        raise NotImplementedError

    @staticmethod
    def from_bytes(data: bytes) -> Candidates:
        """The inverse of `to_bytes`; the arrays lie in `data` and cannot be written."""
        raise NotImplementedError


def arrivals_ms(kafka_timestamp: pa.Array, event_time: pa.Array, tp: Array, low_ms: Array, high_ms: int) -> Array:
    """When each row arrived, as dedup counts it: epoch ms, int64."""
    raise NotImplementedError
