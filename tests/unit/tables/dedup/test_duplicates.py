"""`find_duplicates` finds the duplicates that the oracle finds, in difficult random batches and a few made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import NEVER, Kept, Key, Row, State, key_of, low_ms, sweep

from waybill.config.names import TopicPartition
from waybill.tables.dedup.candidates import Candidates
from waybill.tables.dedup.index.lookup import EarlierRows
from waybill.tables.dedup.keys import exclude_assigned_ids, hash_keys
from waybill.tables.dedup.match import _order_by_key, find_duplicates, one_of_each_key
from waybill.tables.dedup.rows import arrivals_ms

_TPS = tuple(TopicPartition(topic, partition) for topic, partition in (("a", 0), ("a", 2), ("a", 10), ("b", 0)))
_HIGH_MS = 100
_KEYS = [f"k{n}" for n in range(4)]


@dataclass(frozen=True)
class History:
    """Batches of a stream, and the horizon that the budget requires after each."""

    batches: Sequence[Sequence[Row]]
    forced_ms: Sequence[int]
    window_ms: int


def _hash(key: Key) -> tuple[int, int]:
    """Return a hash of which two keys share each half, so that neither half suffices."""
    number = _KEYS.index(key[0]) if key[0] in _KEYS else len(_KEYS)
    return 2**64 - 1 - number // 2, number % 3


def _candidates(rows: Sequence[Row], state: State, window_ms: int) -> Candidates:
    low = low_ms(state.watermarks, _TPS, window_ms)
    tp = np.array([_TPS.index(row.tp) for row in rows], np.int32)
    hashes = [_hash(key_of(row, ["message_id"]) or ("",)) for row in rows]
    kind = pa.timestamp("ms", "UTC")
    return Candidates(
        hi=np.array([hi for hi, _ in hashes], np.uint64),
        lo=np.array([lo for _, lo in hashes], np.uint64),
        arrived_ms=arrivals_ms(
            pa.array([row.kafka_timestamp_ms for row in rows], kind),
            pa.array([row.event_time_ms for row in rows], kind),
            tp,
            np.array([low[tp] for tp in _TPS]),
            _HIGH_MS,
        ),
        tp=tp,
        offset=np.array([row.offset for row in rows], np.int64),
        file=np.zeros(len(rows), np.int32),
        row=np.arange(len(rows)),
    )


def _earlier_rows(rows: Sequence[Row], state: State, only_once: bool) -> EarlierRows:
    """Return what an index of all kept rows answers: the latest of each key, for all its rows or for one only."""
    entries: list[tuple[int, Kept]] = []
    answered: set[Key] = set()
    for at, row in enumerate(rows):
        key = key_of(row, ["message_id"]) or ("",)
        kept = [kept for kept in state.kept.get(key, ()) if kept.arrived_ms >= state.horizon_ms]
        if kept and not (only_once and key in answered):
            entries.append((at, max(kept, key=lambda kept: kept.arrived_ms)))
            answered.add(key)
    return EarlierRows(
        np.array([at for at, _ in entries], np.int64),
        np.array([kept.arrived_ms for _, kept in entries], np.int64),
        np.array([_TPS.index(kept.row.tp) for _, kept in entries], np.int32),
        np.array([kept.row.offset for _, kept in entries], np.int64),
    )


_Place = tuple[TopicPartition, int]
_Repeated = tuple[_Place, int] | None


def _matched(rows: Sequence[Row], state: State, window_ms: int, only_once: bool) -> dict[_Place, _Repeated]:
    """Return for each row the row that it repeats and its arrival; None for a row that is kept."""
    keyed = [row for row in rows if key_of(row, ["message_id"]) is not None]
    earlier = _earlier_rows(keyed, state, only_once)
    result = find_duplicates(_candidates(keyed, state, window_ms), earlier, window_ms, state.horizon_ms)
    first = zip(result.first_tp.tolist(), result.first_offset.tolist(), result.first_arrived_ms.tolist(), strict=True)
    return {
        (row.tp, row.offset): None if kept else ((_TPS[tp], offset), arrived_ms)
        for row, kept, (tp, offset, arrived_ms) in zip(keyed, result.kept.tolist(), first, strict=True)
    }


@st.composite
def _histories(draw: st.DrawFn) -> History:
    times = st.integers(0, _HIGH_MS + 10)
    rows = draw(
        st.lists(
            st.tuples(st.sampled_from(_TPS), st.none() | times, times, st.none() | st.sampled_from(_KEYS)), max_size=40
        )
    )
    offsets = dict.fromkeys(_TPS, 0)
    whole: list[Row] = []
    for tp, kafka_timestamp_ms, event_time_ms, key in rows:
        offsets[tp] += 1
        whole.append(Row(tp, offsets[tp], kafka_timestamp_ms, event_time_ms, (key or f"{tp}@{offsets[tp]}",)))
    cuts = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=4)))
    batches = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    return History(
        # Files are read in any order.
        batches=[draw(st.permutations(batch)) for batch in batches],
        forced_ms=[draw(st.just(NEVER) | st.integers(0, _HIGH_MS)) for _ in batches],
        window_ms=draw(st.sampled_from([0, 1, 5, 30, 200])),
    )


@settings(max_examples=150, deadline=None)
@given(_histories(), st.booleans())
def test_every_sweep_of_a_random_history_matches_the_oracle(history: History, only_once: bool) -> None:
    state = State()
    for batch, forced_ms in zip(history.batches, history.forced_ms, strict=True):
        swept = sweep(state, batch, high_ms=_HIGH_MS, window_ms=history.window_ms, forced_horizon_ms=forced_ms)
        expected: dict[_Place, _Repeated] = {
            (d.row.tp, d.row.offset): ((d.first.row.tp, d.first.row.offset), d.first.arrived_ms)
            for d in swept.duplicates
        }
        keyed = [kept.row for kept in swept.kept if key_of(kept.row, ["message_id"]) is not None]
        expected.update(((row.tp, row.offset), None) for row in keyed)
        assert _matched(batch, state, history.window_ms, only_once) == expected
        state = swept.state


def test_large_batch_of_hashed_keys_matches_the_oracle() -> None:
    """Most ids occur once; some were assigned by Waybill, and some were kept by an earlier sweep."""
    random = Random(6)
    rows = [
        Row(_TPS[n % 4], n, random.choice([None, n // 100]), n // 100, (f"id-{random.randrange(20_000)}",))
        for n in range(4_000)
    ]
    rows[::50] = [replace(row, key_values=(f"{row.tp}@{row.offset}",)) for row in rows[::50]]
    before = sweep(State(), rows[:2_000], high_ms=_HIGH_MS, window_ms=20)
    swept = sweep(before.state, rows[2_000:], high_ms=_HIGH_MS, window_ms=20)

    batch = pa.RecordBatch.from_pydict(
        {
            "message_id": [row.key_values[0] for row in rows[2_000:]],
            "topic": [row.tp.topic for row in rows[2_000:]],
            "partition": pa.array([row.tp.partition for row in rows[2_000:]], pa.int32()),
            "offset": [row.offset for row in rows[2_000:]],
        }
    )
    hashes = exclude_assigned_ids(hash_keys([batch.column("message_id")], b"sixteen bytes ok"), ["message_id"], batch)
    candidates = replace(_candidates(rows[2_000:], before.state, 20), hi=hashes.hi, lo=hashes.lo).take(hashes.present)
    keyed = [row for row, present in zip(rows[2_000:], hashes.present, strict=True) if present]
    result = find_duplicates(
        candidates, _earlier_rows(keyed, before.state, only_once=False), 20, before.state.horizon_ms
    )
    first = list(zip(result.first_tp.tolist(), result.first_offset.tolist(), strict=True))
    assert {row.offset: first[n] for n, row in enumerate(keyed) if not result.kept[n]} == {
        d.row.offset: (_TPS.index(d.first.row.tp), d.first.row.offset) for d in swept.duplicates
    }
    assert len(keyed) == 1_960
    assert 50 < len(swept.duplicates) < 500


def _row(tp: int, offset: int, arrived_ms: int, key: str = "k0") -> Row:
    return Row(_TPS[tp], offset, arrived_ms, arrived_ms, (key,))


@pytest.mark.parametrize(
    ("rows", "repeated"),
    [
        # The edge of the window: a distance of exactly the window counts, one ms more does not.
        ([_row(0, 1, 10), _row(0, 2, 40), _row(0, 3, 41)], [None, 1, None]),
        # A duplicate does not extend the window.
        ([_row(0, 1, 10), _row(0, 2, 30), _row(0, 3, 50)], [None, 1, None]),
        # Along a topic-partition offsets decide: the duplicate may have the earlier timestamp.
        ([_row(0, 1, 50), _row(0, 2, 40)], [None, 1]),
        # Across topic-partitions arrival decides, then the topic-partition.
        ([_row(0, 1, 50), _row(1, 2, 40)], [2, None]),
        ([_row(1, 1, 50), _row(0, 2, 50)], [2, None]),
        # 20 follows 50 in its topic-partition, so it does not precede 45 of another one.
        ([_row(0, 1, 50), _row(0, 2, 20), _row(1, 3, 45)], [3, 3, None]),
        # A row repeats the latest kept row in its window.
        ([_row(0, 1, 10), _row(0, 2, 41), _row(0, 3, 42)], [None, None, 2]),
        # Other keys do not matter, even with the same half of the hash.
        ([_row(0, 1, 10), _row(0, 2, 11, "k1"), _row(0, 3, 12, "k2"), _row(0, 4, 13)], [None, None, None, 1]),
    ],
)
def test_duplicates_follow_the_definition(rows: list[Row], repeated: list[int | None]) -> None:
    result = find_duplicates(_candidates(rows, State(), 30), EarlierRows.none(), 30, NEVER)
    first = result.first_offset.tolist()
    assert [None if kept else first[n] for n, kept in enumerate(result.kept.tolist())] == repeated
    swept = sweep(State(), rows, high_ms=_HIGH_MS, window_ms=30)
    assert {d.row.offset: d.first.row.offset for d in swept.duplicates} == {
        row.offset: offset for row, offset in zip(rows, repeated, strict=True) if offset is not None
    }


def test_rows_kept_before_the_horizon_are_not_compared() -> None:
    rows = [_row(0, 1, 10), _row(0, 2, 20), _row(0, 3, 30), _row(0, 4, 31)]
    result = find_duplicates(_candidates(rows, State(), 30), EarlierRows.none(), 30, 25)
    assert result.kept.tolist() == [True, True, True, False]
    assert result.first_offset.tolist()[3] == 3


@pytest.mark.parametrize("rows", [[_row(0, 5, 40)], [_row(0, 5, 40), _row(0, 6, 40, "k3")]])
def test_index_entry_from_before_the_horizon_is_ignored(rows: list[Row]) -> None:
    earlier = EarlierRows(np.array([0]), np.array([24]), np.array([3], np.int32), np.array([77]))
    assert find_duplicates(_candidates(rows, State(), 30), earlier, 30, 25).kept.all()
    result = find_duplicates(_candidates(rows, State(), 30), earlier, 30, 24)
    assert result.kept.tolist() == [False, True][: len(rows)]
    assert (result.first_tp[0], result.first_offset[0], result.first_arrived_ms[0]) == (3, 77, 24)


def test_no_candidates_give_an_empty_result() -> None:
    assert find_duplicates(Candidates.empty(), EarlierRows.none(), 30, NEVER).kept.tolist() == []


def test_one_of_each_key_returns_each_key_once() -> None:
    n = 60
    number = np.arange(n) % 7
    hi, lo = (np.where(number < 6, number // 2, 100 + np.arange(n)).astype(np.uint64), (number % 3).astype(np.uint64))
    none = np.zeros(n, np.int64)
    rows = Candidates(hi, lo, none, none.astype(np.int32), np.arange(n), none.astype(np.int32), none)
    asked = one_of_each_key(rows)
    assert asked is not None
    found = list(zip(hi[asked].tolist(), lo[asked].tolist(), strict=True))
    assert len(found) == len(set(found))
    assert set(found) == set(zip(hi.tolist(), lo.tolist(), strict=True))
    assert one_of_each_key(rows.take(np.flatnonzero(number == 6))) is None
    assert one_of_each_key(Candidates.empty()) is None


def test_index_entry_of_one_candidate_applies_to_all_of_its_key() -> None:
    n = 5
    one, offset = np.ones(n, np.uint64), np.arange(n)
    at_ms = np.array([100, 101, 102, 150, 151], np.int64)
    rows = Candidates(one, one, at_ms, np.zeros(n, np.int32), offset, np.zeros(n, np.int32), offset)
    entry = EarlierRows(np.array([3]), np.array([95], np.int64), np.array([7], np.int32), np.array([42], np.int64))
    result = find_duplicates(rows, entry, 10, 0)
    assert result.kept.tolist() == [False, False, False, True, False]
    assert result.first_offset[[0, 1, 2, 4]].tolist() == [42, 42, 42, 3]
    assert result.first_tp[[0, 1, 2, 4]].tolist() == [7, 7, 7, 0]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_kept_keys_are_sorted_by_both_halves_of_the_hash(keys: list[tuple[int, int]]) -> None:
    hi, lo = (np.array([key[half] for key in keys], np.uint64) for half in (0, 1))
    order = _order_by_key(hi, lo)
    assert [keys[n] for n in order.tolist()] == sorted(keys)
