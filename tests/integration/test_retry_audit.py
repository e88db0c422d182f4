"""A retry of the quarantine is audited: rows that fail a critical check stay there until a person accepts it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from partition_scenes import Scene, event, mostly_deep
from quarantine_scenes import BROKEN, GOOD, JUNK, MENDED, TP0, check_done, check_sound, fill_quarantine, retries, retry

from waybill.base import failpoints
from waybill.base.errors import RetryRefused
from waybill.tables.audit import DecisionKind, HoldDecision, audit_run
from waybill.tables.audit.results_table import read_results
from waybill.tables.quarantine.staged import find_retry

pytestmark = [pytest.mark.integration, pytest.mark.matrix]

MakeScene = Callable[..., Scene]

NO_SUCH_ID = {**MENDED, "message_id": "number"}
"""A parser that takes the id from a field that no message has."""
ALL_HAVE_IDS = {"checks": {"message_id_null_share": {"severity": "critical", "max_share": 0, "min_messages": 1}}}
SMALL_OFFSETS = {"expect_column_values_to_be_between": {"column": "offset", "max_value": 110}}
ANN = HoldDecision(DecisionKind.RELEASED, "ann", "these have no ids", datetime(2026, 1, 1, tzinfo=UTC))


class Killed(BaseException):
    """Raised by a test to end the process at a step."""


@pytest.fixture(autouse=True)
def _no_failpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failpoints, "_armed", {})


@pytest.fixture
def scene(make_scene: MakeScene) -> Scene:
    """A scene with all messages but a tombstone in quarantine, and a parser that finds no ids."""
    made = make_scene()
    fill_quarantine(made)
    made.config = made.with_stream(parser=NO_SUCH_ID, quality=ALL_HAVE_IDS)
    return made


def state(scene: Scene) -> tuple[Any, ...]:
    """Return all that a retry may change, except for the results of audits."""
    tables = scene.table.metadata_location, scene.quarantine.metadata_location
    return (*tables, scene.data_files(), scene.keys("retries/"))


Results = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def results(scene: Scene) -> Results:
    """Return the stored results of the audits of this scene's retries; other scenes share the table of results."""
    began = datetime.now(UTC)

    def read() -> list[dict[str, Any]]:
        rows = read_results(scene.catalog, "flights", since=began)
        return [row for row in rows if row["plan"].startswith("retry-")]

    return read


def with_expectation(scene: Scene, severity: str) -> None:
    scene.config = scene.with_stream(parser=MENDED, quality={"expectations": [{**SMALL_OFFSETS, "severity": severity}]})


def die_at(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    left = [step]

    def reach(name: str) -> None:
        if name == step and left:
            left.pop()
            raise Killed

    monkeypatch.setattr(failpoints, "reach", reach)


def test_a_failed_critical_check_refuses_the_retry_and_changes_nothing(scene: Scene, results: Results) -> None:
    before = state(scene)
    with pytest.raises(RetryRefused) as refused:
        retry(scene)
    message = str(refused.value)
    assert f"flights: {GOOD} messages in quarantine can be parsed now, and are not moved to the table" in message
    assert "message_id_null_share(max_share=" in message
    assert f"100.00% ({GOOD} of {GOOD})" in message
    assert 'waybill quarantine retry flights --accept-failed-checks "why"' in message
    assert state(scene) == before
    check_done(scene, GOOD + JUNK)
    stored = {row["expectation"]: row["success"] for row in results()}
    assert stored == {
        "rows_match_messages": True, "offsets_unique": True, "message_id_null_share": False,
    }  # fmt: skip


@pytest.mark.deep
def test_a_retry_with_a_corrected_config_moves_the_messages(scene: Scene) -> None:
    with pytest.raises(RetryRefused):
        retry(scene)
    scene.config = scene.with_stream(parser=MENDED, quality=ALL_HAVE_IDS)
    report = retry(scene)
    assert (report.moved, report.retries, report.warnings) == (GOOD, [0], [])
    check_done(scene, JUNK)


def test_a_person_can_accept_failed_checks_and_the_decision_is_stored(scene: Scene) -> None:
    report = retry(scene, accepted=ANN)
    assert report.moved == GOOD
    assert "(ann accepted it: these have no ids)" in "\n".join(report.lines())
    check_done(scene, JUNK)
    (key,) = [key for key in scene.keys("retries/") if key.endswith("/0.json")]
    stored = find_retry(scene.store, key)
    assert stored is not None
    assert stored.accepted == ANN
    assert stored.audit is not None
    assert [result.check for result in stored.audit.failed_critical] == ["message_id_null_share"]


def test_an_acceptance_that_was_not_needed_is_not_stored(scene: Scene) -> None:
    scene.config = scene.with_stream(parser=MENDED, quality=ALL_HAVE_IDS)
    assert retry(scene, accepted=ANN).moved == GOOD
    (key,) = [key for key in scene.keys("retries/") if key.endswith("/0.json")]
    assert "accepted" not in json.loads(scene.store.read(key))


def test_expectations_are_evaluated_over_the_staged_rows(scene: Scene) -> None:
    with_expectation(scene, "critical")
    before = state(scene)
    with pytest.raises(RetryRefused) as refused:
        retry(scene)
    assert "expect_column_values_to_be_between(column=" in str(refused.value)
    assert "(9 unexpected), such as flights/1@111: 111" in str(refused.value)
    assert state(scene) == before
    check_done(scene, GOOD + JUNK)
    assert retry(scene, accepted=ANN).moved == GOOD
    check_done(scene, JUNK)


def test_warnings_are_reported_and_the_messages_move(scene: Scene) -> None:
    with_expectation(scene, "warning")
    report = retry(scene)
    assert report.moved == GOOD
    (warning,) = report.warnings
    assert warning.startswith("expect_column_values_to_be_between(")
    assert any(warning in line for line in report.lines())
    check_done(scene, JUNK)


def test_a_stream_without_expectations_does_not_read_the_staged_files_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the rows were read again")

    monkeypatch.setattr(audit_run, "_evaluate", refuse)
    assert retry(scene, accepted=ANN).moved == GOOD


@pytest.mark.deep
@pytest.mark.parametrize("step", mostly_deep(failpoints.RETRY[:-2], "retry.audited", "retry.results_stored"))
def test_results_are_stored_once_and_an_acceptance_holds_after_a_kill(
    scene: Scene, results: Results, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    die_at(monkeypatch, step)
    with pytest.raises(Killed):
        retry(scene, accepted=ANN)
    check_sound(scene, JUNK if step == "retry.committed" else GOOD + JUNK)
    if step in failpoints.RETRY[:3]:  # nothing is recorded: the next retry has no acceptance
        with pytest.raises(RetryRefused):
            retry(scene)
        check_sound(scene, GOOD + JUNK)
        return
    # Another retry, with a broken parser and without an acceptance, finishes what was recorded.
    scene.config = scene.with_stream(parser=BROKEN, quality={})
    scene.put(TP0, [event(54, 0)])
    scene.run()
    report = retry(scene)
    assert report.finished == [0]
    assert any("ann accepted it" in warning for warning in report.warnings)
    check_done(scene, JUNK + 1)
    checks = [row["expectation"] for row in results()]
    assert sorted(checks) == sorted(set(checks))
    assert "message_id_null_share" in checks


@pytest.mark.deep
def test_a_refused_retry_beside_one_that_was_recorded_changes_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rival moves the rows while the refused retry is audited."""
    refused = scene.config
    ran: list[int] = []

    def reach(name: str) -> None:
        if name == "retry.staged" and not ran:
            ran.append(1)
            scene.config = scene.with_stream(parser=MENDED, quality=ALL_HAVE_IDS)
            assert retry(scene).moved == GOOD
            scene.config = refused

    monkeypatch.setattr(failpoints, "reach", reach)
    with pytest.raises(RetryRefused):
        retry(scene)
    check_done(scene, JUNK)
    assert retries(scene) == (1, 1)
    assert retry(scene).moved == 0
