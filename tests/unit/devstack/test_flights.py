"""The demo's repeated events."""

from __future__ import annotations

from collections import Counter

from devstack.flights import FlightEvent, with_retries


def test_repeated_events_differ_from_the_first_only_in_their_time() -> None:
    events = [FlightEvent(b"key", b"%d" % n, n, [("n", b"%d" % n)]) for n in range(1000)]
    sent = list(with_retries(events, 1000, 6))
    assert sent == list(with_retries(events, 1000, 6))
    assert len(sent) == 1006
    assert [event for event in sent if event in events] == events, "the original events are unchanged and in order"
    times = Counter(event.value for event in sent)
    twice = [value for value, count in times.items() if count == 2]
    assert len(twice) == 6
    assert set(times.values()) == {1, 2}
    for value in twice:
        first, again = (event for event in sent if event.value == value)
        assert (first.key, first.headers) == (again.key, again.headers)
        assert first.timestamp_ms < again.timestamp_ms
