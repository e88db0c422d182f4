"""Tallies add up and are divided without loss."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.base.metering import Tally, divided

_FIGURES = st.integers(0, 10**12)
_SECONDS = st.floats(0, 1e6)
_TALLIES = st.builds(
    lambda requests, sent, received, cpu, messages: Tally.from_fields(
        {"requests": requests, "sent": sent, "received": received, "cpu": cpu, "messages": messages}
    ),
    st.dictionaries(st.sampled_from(["PutObject", "GetObject", "ListObjectsV2"]), _FIGURES),
    _FIGURES,
    _FIGURES,
    st.dictionaries(st.sampled_from(["lane", "plan"]), _SECONDS),
    _FIGURES,
)
_WEIGHTS = st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 1e6), min_size=1)


@given(_TALLIES, _WEIGHTS)
def test_parts_add_up_to_what_was_divided(tally: Tally, weights: dict[str, float]) -> None:
    parts = divided(tally, weights)
    total = Tally.sum(parts.values())
    assert parts.keys() == weights.keys()
    assert +total.requests == +tally.requests
    assert (total.sent_bytes, total.received_bytes, total.messages) == (
        tally.sent_bytes,
        tally.received_bytes,
        tally.messages,
    )
    assert total.cpu_seconds == pytest.approx(tally.cpu_seconds)
    assert all(part.sent_bytes >= 0 and all(each >= 0 for each in part.requests.values()) for part in parts.values())


@given(_TALLIES)
def test_a_stored_tally_is_read_back(tally: Tally) -> None:
    found = Tally.from_fields(tally.to_fields())
    assert +found.requests == +tally.requests
    assert (found.sent_bytes, found.received_bytes, found.messages) == (
        tally.sent_bytes,
        tally.received_bytes,
        tally.messages,
    )
    assert {step: found.cpu_seconds.get(step, 0.0) for step in tally.cpu_seconds} == pytest.approx(
        tally.cpu_seconds, abs=1e-4
    )


def test_shares_follow_the_weights_and_are_equal_without_any() -> None:
    tally = Tally.from_fields({"requests": {"PutObject": 10}, "cpu": {"lane": 4.0}})
    by_weight = divided(tally, {"a": 3.0, "b": 1.0})
    assert by_weight["a"].cpu_seconds == {"lane": 3.0}
    assert [by_weight[name].requests["PutObject"] for name in "ab"] == [8, 2]
    assert [part.requests["PutObject"] for part in divided(tally, {"a": 0.0, "b": 0.0}).values()] == [5, 5]
