"""The results of a group's application, which Airflow reads from S3."""

from __future__ import annotations

from typing import Any, cast

import pytest
from group_configs import StoreInMemory

from waybill.base.errors import DocumentDamaged, DocumentTooNew
from waybill.services.store import Store
from waybill.tables.spark.group_results import GroupResults, ResultsRecorder, StreamOutcome, StreamResult

KEY = "p/groups/default/partition.json"
DONE = StreamResult("a", StreamOutcome.DONE, committed=True, rows=5, lines=("partitioned a",), alerts=("a: look",))
BROKEN = StreamResult("b", StreamOutcome.FAILED, error="ParserBroken", message="raised")
AWAY = StreamResult("c", StreamOutcome.FAILED, committed=True, rows=2, error="StoreUnavailable", retriable=True)


@pytest.fixture
def store() -> StoreInMemory:
    return StoreInMemory()


def recorder(store: StoreInMemory, run: str = "r1", earlier: GroupResults | None = None) -> ResultsRecorder:
    return ResultsRecorder(cast("Store", store), "default", "partition", run, ["a", "b", "c"], earlier)


def load(store: StoreInMemory, run: str = "r1") -> GroupResults | None:
    return GroupResults.load(cast("Store", store), "default", "partition", run)


def test_results_are_there_as_soon_as_each_stream_has_ended(store: StoreInMemory) -> None:
    recording = recorder(store)
    recording.add(DONE)
    found = load(store)
    assert found is not None
    assert (found.ended, found.missing, found.streams) == (False, ["b", "c"], {"a": DONE})
    recording.add(BROKEN)
    recording.add(AWAY)
    recording.end()
    found = load(store)
    assert found is not None
    assert (found.ended, found.missing, list(found.streams.values())) == (True, [], [DONE, BROKEN, AWAY])
    assert list(store.objects) == [KEY]


def test_results_of_another_run_are_not_taken_for_this_one(store: StoreInMemory) -> None:
    recorder(store, "r1").end()
    assert load(store, "r2") is None
    assert GroupResults.load(cast("Store", StoreInMemory()), "default", "partition", "r1") is None


def test_a_later_try_keeps_what_a_retry_does_not_change_and_adds_to_the_rest(store: StoreInMemory) -> None:
    earlier = GroupResults("r1", ("a", "b", "c"), ended=True, streams={r.stream: r for r in (DONE, BROKEN, AWAY)})
    recording = recorder(store, earlier=earlier)
    assert recording.results.streams == {"a": DONE, "b": BROKEN}
    assert not recording.results.ended
    recording.add(StreamResult("c", StreamOutcome.NOTHING_NEW))
    again = recording.results.streams["c"]
    assert (again.status, again.committed, again.rows, again.error) == (StreamOutcome.DONE, True, 2, None)


def test_after_a_killed_try_a_stream_with_nothing_new_counts_as_committed(store: StoreInMemory) -> None:
    killed = GroupResults("r1", ("a", "b", "c"), ended=False, streams={"a": DONE})
    recording = recorder(store, earlier=killed)
    recording.add(StreamResult("b", StreamOutcome.NOTHING_NEW))
    assert recording.results.streams["b"].committed
    ended = GroupResults("r1", ("a", "b", "c"), ended=True, streams={"a": DONE})
    recording = recorder(store, earlier=ended)
    recording.add(StreamResult("b", StreamOutcome.NOTHING_NEW))
    assert not recording.results.streams["b"].committed


@pytest.mark.parametrize("content", [b"", b"[]", b'{"v": 1}', b'{"v": 1, "run": "r1", "selected": 3, "streams": []}'])
def test_damaged_results_are_an_error_that_names_the_object(store: StoreInMemory, content: bytes) -> None:
    store.objects[KEY] = content
    with pytest.raises(DocumentDamaged, match=KEY):
        load(store)


def test_results_of_a_newer_version_are_refused(store: StoreInMemory) -> None:
    store.objects[KEY] = b'{"v": 2}'
    with pytest.raises(DocumentTooNew, match=KEY):
        load(store)


@pytest.mark.parametrize(
    ("changes", "is_sound", "problems"),
    [
        ({}, True, ()),
        ({"alerts": ("a: look",)}, False, ("a: look",)),
        (
            {"status": StreamOutcome.FAILED, "error": "E", "message": "why", "alerts": ("look",)},
            False,
            ("E: why", "look"),
        ),
    ],
)
def test_a_result_is_sound_without_error_and_alert(
    changes: dict[str, Any], is_sound: bool, problems: tuple[str, ...]
) -> None:
    result = StreamResult(**{"stream": "a", "status": StreamOutcome.DONE, **changes})
    assert (result.is_sound, result.problems) == (is_sound, problems)
