"""Candidates as arrays and bytes, and the arrival of rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest

from waybill.tables.dedup.candidates import Candidates
from waybill.tables.dedup.rows import arrivals_ms
from waybill.tables.iceberg.dedup import NO_HORIZON_MS

_COLUMNS = ("hi", "lo", "arrived_ms", "tp", "offset", "file", "row")


def _candidates(n: int) -> Candidates:
    numbers = np.arange(n)
    return Candidates(
        hi=np.uint64(2**64 - 1) - numbers.astype(np.uint64),
        lo=numbers.astype(np.uint64),
        arrived_ms=numbers - 5,
        tp=(numbers % 3).astype(np.int32),
        offset=numbers + 2**40,
        file=(numbers // 2).astype(np.int32),
        row=numbers % 2,
    )


def _rows(candidates: Candidates) -> list[tuple[int, ...]]:
    return list(zip(*(getattr(candidates, name).tolist() for name in _COLUMNS), strict=True))


@pytest.mark.parametrize("n", [0, 1, 1000])
def test_candidates_are_restored_from_their_bytes(n: int) -> None:
    sent = _candidates(n)
    received = Candidates.from_bytes(sent.to_bytes())
    assert _rows(received) == _rows(sent)
    assert [getattr(received, name).dtype for name in _COLUMNS] == [getattr(sent, name).dtype for name in _COLUMNS]
    assert len(sent.to_bytes()) < 48 * n + 2000


def test_take_selects_rows_by_index_or_by_mask() -> None:
    candidates = _candidates(10)
    assert _rows(candidates.take(np.array([7, 2]))) == [_rows(candidates)[7], _rows(candidates)[2]]
    assert _rows(candidates.take(candidates.tp == 0)) == _rows(candidates)[::3]


def test_concat_keeps_rows_and_types() -> None:
    candidates = _candidates(10)
    parts = [candidates.take(np.arange(0, 4)), Candidates.empty(), candidates.take(np.arange(4, 10))]
    whole = Candidates.concat(parts)
    assert _rows(whole) == _rows(candidates)
    assert [getattr(whole, name).dtype for name in _COLUMNS] == [getattr(candidates, name).dtype for name in _COLUMNS]
    assert len(Candidates.concat([])) == len(Candidates.empty()) == 0


def _times(ms: list[float | None]) -> pa.Array:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return pa.array([None if t is None else epoch + timedelta(milliseconds=t) for t in ms], pa.timestamp("us", "UTC"))


def test_arrival_is_kafkas_time_or_the_event_time_within_the_bounds() -> None:
    kafka = _times([500.9, None, 9_000, 100, -0.5, 100, None])
    event = _times([1, 600.9, 1, 1, 1, 1, 9_999])
    tp = np.array([0, 0, 0, 0, 1, 1, 2], np.int32)
    arrived = arrivals_ms(kafka, event, tp, np.array([400, NO_HORIZON_MS, 7_000]), latest_ms=5_000)
    #                         kafka event high  low  down  kafka  low above high
    assert arrived.tolist() == [500, 600, 5_000, 400, -1, 100, 7_000]
    assert arrived.dtype == np.int64


@pytest.mark.parametrize(("unit", "expected"), [("s", -3_000), ("ms", -3), ("us", -1), ("ns", -1)])
def test_arrival_is_in_ms_for_every_timestamp_unit(unit: str, expected: int) -> None:
    times = pa.array([-3], pa.timestamp(unit))
    assert arrivals_ms(times, times, np.zeros(1, np.int32), np.array([NO_HORIZON_MS]), 0).tolist() == [expected]


def test_arrival_is_refused_for_rows_without_any_time() -> None:
    with pytest.raises(ValueError, match="2 rows have neither kafka_timestamp nor event_time"):
        arrivals_ms(_times([1, None, None]), _times([None] * 3), np.zeros(3, np.int32), np.array([0]), 0)


def test_arrival_of_no_rows_is_empty() -> None:
    assert arrivals_ms(_times([]), _times([]), np.zeros(0, np.int32), np.zeros(0, np.int64), 0).tolist() == []
