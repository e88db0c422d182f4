"""What other upload limits would make of a chain."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from waybill.services.store import PART_BYTES
from waybill.watch.cost import ObjectLimits, predict, upload_requests
from waybill.watch.cost.prediction import PASS_MS, CostedObject, recut

MIB = 1 << 20
MINUTE = 60_000
QUARTER = ObjectLimits(256 * MIB, 15 * MINUTE)

_CHAINS = st.lists(st.tuples(st.integers(1, 3_600_000), st.integers(1, 30 * MIB)), min_size=1, max_size=30).map(
    lambda steps: [
        CostedObject(1_000_000_000 + sum(s[0] for s in steps[: n + 1]), steps[n][1]) for n in range(len(steps))
    ]
)
_LIMITS = st.builds(ObjectLimits, st.integers(MIB, 512 * MIB), st.integers(0, 3_600_000))


def steady(count: int, every_ms: int, size_bytes: int) -> list[CostedObject]:
    return [CostedObject(1_000_000_000 + number * every_ms, size_bytes) for number in range(1, count + 1)]


def test_requests_of_an_upload_are_those_of_the_store() -> None:
    assert upload_requests(1) == upload_requests(PART_BYTES - 1) == 1
    assert upload_requests(PART_BYTES) == 3
    assert upload_requests(PART_BYTES + 1) == 4
    assert upload_requests(4 * PART_BYTES) == 6


def test_objects_of_the_period_count_and_an_index_object_is_one_more_request() -> None:
    pieces = [CostedObject(10, 5), CostedObject(20, PART_BYTES), CostedObject(30, 5)]
    assert predict(pieces, 10, 30).requests == 1 + 3
    assert predict(pieces, 10, 30, is_indexed=True).requests == 2 + 4


def test_a_third_of_the_age_makes_three_times_the_objects() -> None:
    found = list(recut(steady(96, 15 * MINUTE, 8 * MIB), QUARTER, ObjectLimits(256 * MIB, 5 * MINUTE)))
    assert 96 * 3 - 3 <= len(found) <= 96 * 3


def test_four_times_the_age_makes_a_quarter_of_the_objects() -> None:
    found = list(recut(steady(96, 15 * MINUTE, 8 * MIB), QUARTER, ObjectLimits(256 * MIB, 60 * MINUTE)))
    assert 22 <= len(found) <= 24


def test_a_backlog_is_cut_by_size() -> None:
    """Objects of one run of ingest lack a little of `max_bytes`, and so do others."""
    backlog = [CostedObject(1_000_000_000 + n * 500, 1000) for n in range(100)] + [CostedObject(1_000_050_000, 500)]
    now = ObjectLimits(1010, 0)
    found = list(recut(backlog, now, ObjectLimits(510, 0)))
    assert [piece.size_bytes for piece in found[:3]] == [500, 500, 500]
    assert 201 <= len(found) <= 202


@given(_CHAINS, _LIMITS, _LIMITS)
def test_no_byte_is_cut_twice_and_all_objects_keep_the_limit(
    chain: list[CostedObject], now: ObjectLimits, other: ObjectLimits
) -> None:
    found = list(recut(chain, now, other))
    total = sum(piece.size_bytes for piece in chain)
    assert sum(piece.size_bytes for piece in found) <= total
    assert all(0 < piece.size_bytes <= other.max_bytes for piece in found)
    assert [piece.at_ms for piece in found] == sorted(piece.at_ms for piece in found)
    assert not found or found[-1].at_ms <= chain[-1].at_ms
    if other.max_age_ms == 0:
        assert sum(piece.size_bytes for piece in found) == total


@given(st.integers(1, 200), st.integers(1, 200 * MIB))
def test_the_present_limits_predict_a_steady_chain_as_it_is(count: int, size_bytes: int) -> None:
    chain = steady(count, 15 * MINUTE + PASS_MS, size_bytes)
    assert abs(len(list(recut(chain, QUARTER, QUARTER))) - count) <= max(1, count // 10)
