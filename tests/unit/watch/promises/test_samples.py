"""The offsets that earlier watches saw, against all of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from waybill.config.names import TopicPartition
from waybill.watch.promises.samples import OffsetSample, Samples

KEY = ("flights", TopicPartition("flights", 0))
MINUTE = 60_000


def sampled(ends: list[int], every_ms: int = MINUTE) -> Samples:
    samples = Samples()
    for number, end in enumerate(ends):
        samples = samples.with_sample(number * every_ms, {KEY: OffsetSample(0, end, end // 2)})
    return samples


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.integers(0, 80))
def test_beyond_since_is_the_first_watch_that_saw_it(growth: list[int], offset: int) -> None:
    ends = [sum(growth[: number + 1]) for number in range(len(growth))]
    first = next((number for number, end in enumerate(ends) if end > offset), None)
    assert sampled(ends).beyond_since(KEY, offset) == (None if first is None else first * MINUTE)


@given(st.integers(1, 3000))
def test_a_day_needs_few_samples_and_an_old_time_is_off_by_an_eighth_at_most(watches: int) -> None:
    samples = sampled(list(range(1, watches + 1)))
    assert len(samples.samples) <= 90
    newest = (watches - 1) * MINUTE
    for offset in range(max(0, watches - 36 * 60), watches, 97):
        since = samples.beyond_since(KEY, offset)
        assert since is not None
        age, found = newest - offset * MINUTE, newest - since
        assert age * 7 / 8 - 2 * MINUTE <= found <= age


def test_samples_are_the_same_after_they_were_stored() -> None:
    samples = sampled([1, 2, 3])
    assert Samples.parse(samples.content()) == samples
    assert Samples.parse(None) == Samples.parse(b"no samples") == Samples()


def test_an_archive_that_stands_still_is_told_from_a_log_that_stands_still() -> None:
    samples = sampled([10, 20, 20, 40])
    assert samples.beyond_since(KEY, 9, of_archive=True) == MINUTE
    assert samples.beyond_since(KEY, 9) == 0
    assert samples.latest_before(KEY, 20) == 2 * MINUTE
    assert samples.first_since(KEY, 2 * MINUTE) == OffsetSample(0, 20, 10)
    assert samples.at_least_ago(KEY, 90_000) == (MINUTE, OffsetSample(0, 20, 10))


def test_end_of_a_log_that_became_shorter_is_remembered() -> None:
    key = ("flights", TopicPartition("flights", 0))
    samples = (
        Samples().with_sample(1_000, {key: OffsetSample(0, 100, 70)}).with_sample(2_000, {key: OffsetSample(0, 30, 70)})
    )
    for minute in range(3 * 24 * 60):  # the samples themselves are gone by then
        samples = samples.with_sample(100_000 + minute * 60_000, {key: OffsetSample(0, 200, 70)})
    samples = Samples.parse(samples.content())
    [drop] = samples.drops
    assert (drop.key, drop.at_ms, drop.end, drop.committed) == (key, 1_000, 100, 70)


@given(st.lists(st.integers(0, 5) | st.none(), max_size=12))
def test_drop_after_an_outage_is_found_against_the_end_that_was_seen_last(ends: list[int | None]) -> None:
    """None: the topic-partition has no leader, as before most unclean elections."""
    samples, expected, last = Samples(), list[tuple[int, int]](), (0, -1)
    for number, end in enumerate(ends):
        sample = {} if end is None else {KEY: OffsetSample(0, end, 0)}
        samples = Samples.parse(samples.with_sample(number * 60 * MINUTE, sample).content())
        if end is not None:
            expected += [last] if end < last[1] else []
            last = (number * 60 * MINUTE, end)
    assert [(drop.at_ms, drop.end) for drop in samples.drops] == expected


def test_end_of_a_log_is_remembered_through_an_outage_longer_than_samples_are_kept() -> None:
    samples = Samples().with_sample(0, {KEY: OffsetSample(0, 100, 70)})
    for hour in range(1, 60):
        samples = samples.with_sample(hour * 60 * MINUTE, {})
    [drop] = samples.with_sample(60 * 60 * MINUTE, {KEY: OffsetSample(0, 80, 70)}).drops
    assert (drop.key, drop.at_ms, drop.end, drop.committed) == (KEY, 0, 100, 70)
