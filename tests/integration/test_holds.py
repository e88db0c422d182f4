"""Write, audit, publish: what readers see while a run is held, and after a person's decision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import pytest
from partition_scenes import Scene, event, junk, mostly_deep
from test_partition import Killed, die_at

from waybill.base.errors import DecisionRefused, PublicationHeld, PublicationRejected
from waybill.config.names import TopicPartition, name_with_generation, quarantine_table_name
from waybill.tables.audit import Audit, AuditInput, CheckResult, DecisionKind, Severity
from waybill.tables.iceberg import drop_branch, read_progress
from waybill.tables.partition import publication
from waybill.tables.partition.holds import decide_hold, find_hold
from waybill.tables.partition.partition_plan import Task
from waybill.tables.partition.tasks import Job, TaskResult
from waybill.tables.staging.driver import RunOutcome
from waybill.tables.staging.services import services_of

pytestmark = [pytest.mark.integration, pytest.mark.matrix]

TP = TopicPartition("flights", 0)
OTHER_FIELDS = {"name": "json", "event_time": {"field": "when", "format": "epoch_ms"}, "message_id": "id"}
DECISION_STEPS = ["decided", "quarantine_branched", "branched", "audited", "quarantine_published"]
RUN_STEPS = ["executed", "staged", "quarantine_branched", "branched", "audited"]
MakeScene = Callable[..., Scene]


def refuse_more_than_half(_services: object, given: AuditInput, **_: object) -> Audit:
    """Audit as the built-in check of the quarantine's share does, with the severity critical."""
    rows = sum(file.record_count for file in given.table_files)
    quarantined = sum(file.record_count for file in given.quarantine_files)
    success = quarantined <= rows
    found = CheckResult(
        "quarantine_share", {}, Severity.CRITICAL, success, f"{quarantined} of {rows + quarantined}", None, ("x/0@1",)
    )
    return Audit(given.plan_id, given.run_id, datetime.now(UTC), (found,))


@pytest.fixture
def scene(make_scene: MakeScene, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A table with ten rows, and input of which most cannot be parsed."""
    monkeypatch.setattr(publication, "run_audit", refuse_more_than_half)
    made = make_scene()
    made.put(TP, [event(n, n) for n in range(10)])
    made.run()
    made.put(TP, [event(10, 10), *(junk(n) for n in range(11, 20))])
    return made


def hold(scene: Scene) -> str:
    """Run until the hold, and return its message."""
    with pytest.raises(PublicationHeld) as held:
        scene.run()
    return str(held.value)


def visible(scene: Scene) -> tuple[list[int], list[int]]:
    """Return the offsets that readers of the table and of the quarantine see."""
    tables = (scene.table, scene.quarantine)
    table, quarantine = ([*t.scan(selected_fields=("offset",)).to_arrow()["offset"].to_pylist()] for t in tables)
    return sorted(table), sorted(quarantine)


def refuse_tasks(job: Job, tasks: Sequence[Task]) -> list[TaskResult]:
    raise AssertionError("the tasks were executed before")


def release(scene: Scene, on_step: Callable[[str], None] = lambda _: None) -> None:
    decide_hold(scene.config, "flights", DecisionKind.RELEASED, by="ann", reason="known", on_step=on_step)


def reject(scene: Scene, on_step: Callable[[str], None] = lambda _: None) -> None:
    decide_hold(scene.config, "flights", DecisionKind.REJECTED, by="ann", reason="wrong parser", on_step=on_step)


def mend(scene: Scene) -> None:
    """Replace the junk by what the next config can parse. (The archive's objects never change; the scene's do.)"""
    scene.config = scene.with_stream(parser={"name": "raw"})


def branches(scene: Scene) -> set[str]:
    return {*scene.table.metadata.refs, *scene.quarantine.metadata.refs}


def test_a_critical_failure_is_held_and_readers_see_nothing_of_the_run(scene: Scene) -> None:
    message = hold(scene)
    assert "1 rows and 9 quarantined messages are held, not published: quarantine_share()" in message
    assert "9 of 10, such as x/0@1" in message
    assert "waybill quality release flights" in message
    assert visible(scene) == (list(range(10)), [])
    assert read_progress(scene.table.metadata, "t") == {TP: 10}
    (branch,) = branches(scene) - {"main"}
    held = scene.table.scan(snapshot_id=scene.table.metadata.refs[branch].snapshot_id).to_arrow()
    assert sorted(held["offset"].to_pylist()) == list(range(11)), "the branch shows what would be published"


def test_later_runs_wait_for_the_decision_and_execute_nothing(scene: Scene) -> None:
    first = hold(scene)
    scene.put(TP, [event(20, 20)])
    with pytest.raises(PublicationHeld) as again:
        scene.run(refuse_tasks)
    assert str(again.value) == first
    assert visible(scene) == (list(range(10)), [])


def test_a_release_publishes_the_held_rows_as_they_are(scene: Scene) -> None:
    hold(scene)
    mend(scene)  # has no effect on what is staged
    with pytest.raises(DecisionRefused, match=r"plan \w+ is held now, and the decision is about plan of_yesterday"):
        decide_hold(scene.config, "flights", DecisionKind.RELEASED, by="ann", reason="known", plan="of_yesterday")
    with services_of(scene.config, None) as services:
        held = find_hold(services, scene.config, "flights")
    assert held is not None
    assert held.decision is None
    found = decide_hold(scene.config, "flights", DecisionKind.RELEASED, by="ann", reason="known", plan=held.plan.id)
    assert found.decision is not None
    assert (found.decision.kind, found.decision.by, found.decision.reason) == (DecisionKind.RELEASED, "ann", "known")
    assert visible(scene) == (list(range(11)), list(range(11, 20)))
    assert branches(scene) == {"main"}
    scene.check_exactly_once()
    scene.check_no_file_is_left_over()
    assert scene.run().outcome is RunOutcome.NOTHING_NEW


def test_after_a_rejection_the_next_run_parses_the_same_messages_again(scene: Scene) -> None:
    hold(scene)
    reject(scene)
    assert branches(scene) == {"main"}
    assert visible(scene) == (list(range(10)), [])
    mend(scene)
    report = scene.run()
    assert (report.rows, report.quarantined) == (10, 0)
    assert visible(scene) == (list(range(20)), [])
    scene.check_exactly_once()


def test_a_rejection_without_a_correction_is_held_again(scene: Scene) -> None:
    hold(scene)
    reject(scene)
    hold(scene)
    reject(scene)
    mend(scene)
    scene.run()
    scene.check_exactly_once()
    assert branches(scene) == {"main"}


@pytest.mark.deep
def test_a_decision_is_made_once(scene: Scene) -> None:
    with pytest.raises(DecisionRefused, match="no run is held, so there is nothing to decide"):
        release(scene)
    hold(scene)
    with pytest.raises(Killed):
        release(scene, die_at("decided"))
    with pytest.raises(DecisionRefused, match=r"the plan was released by ann at .* already \(known\)"):
        reject(scene)
    release(scene)
    with pytest.raises(DecisionRefused, match="no run is held"):
        release(scene)
    scene.check_exactly_once()


@pytest.mark.parametrize("step", mostly_deep(DECISION_STEPS, "branched"))
def test_a_killed_release_is_finished_by_the_next_run(scene: Scene, step: str) -> None:
    hold(scene)
    with pytest.raises(Killed):
        release(scene, die_at(step))
    assert visible(scene)[0] == list(range(10)), "the main table is published last"
    assert scene.run(refuse_tasks).outcome is RunOutcome.COMMITTED
    scene.check_exactly_once()
    scene.check_no_file_is_left_over()
    assert branches(scene) == {"main"}


@pytest.mark.deep
def test_a_killed_rejection_is_finished_by_the_next_run(scene: Scene) -> None:
    hold(scene)
    with pytest.raises(Killed):
        reject(scene, die_at("decided"))
    mend(scene)
    assert scene.run().rows == 10
    scene.check_exactly_once()
    assert branches(scene) == {"main"}


@pytest.mark.deep
@pytest.mark.parametrize("decide", [release, reject])
def test_the_table_may_be_compacted_during_a_hold(scene: Scene, decide: Callable[[Scene], None]) -> None:
    hold(scene)
    scene.rewrite()
    decide(scene)
    mend(scene)
    scene.run()
    scene.check_exactly_once()
    assert branches(scene) == {"main"}


@pytest.mark.deep
@pytest.mark.parametrize("step", mostly_deep(RUN_STEPS, "audited"))
def test_a_run_that_was_frozen_while_its_plan_was_rejected_publishes_nothing(scene: Scene, step: str) -> None:
    def oversleep(reached: str) -> None:
        if reached == step:
            hold(scene)
            reject(scene)

    with pytest.raises(PublicationRejected, match="ann rejected plan"):
        scene.run(on_step=oversleep)
    assert visible(scene) == (list(range(10)), [])
    mend(scene)
    assert scene.run().rows == 10
    assert branches(scene) == {"main"}, "the frozen run left no branch behind, or the next run removed it"
    scene.check_exactly_once()


@pytest.mark.parametrize("step", mostly_deep(RUN_STEPS, "audited"))
def test_a_run_that_was_frozen_during_a_release_adopts_it(scene: Scene, step: str) -> None:
    def oversleep(reached: str) -> None:
        if reached == step:
            hold(scene)
            release(scene)

    assert scene.run(on_step=oversleep).outcome is RunOutcome.ADOPTED
    assert branches(scene) == {"main"}
    scene.check_exactly_once()
    scene.check_no_file_is_left_over()


def test_a_lost_branch_is_built_again_from_the_staged_files(scene: Scene) -> None:
    hold(scene)
    for table in (scene.table, scene.quarantine):
        for branch in set(table.metadata.refs) - {"main"}:
            assert drop_branch(table, branch)
    hold(scene)
    assert len(branches(scene)) == 2
    release(scene)
    scene.check_exactly_once()


def test_a_hold_is_found_with_its_audit(scene: Scene) -> None:
    with services_of(scene.config) as services:
        assert find_hold(services, scene.config, "flights") is None
        hold(scene)
        found = find_hold(services, scene.config, "flights")
    assert found is not None
    assert found.decision is None
    assert [result.check for result in found.audit.failed_critical] == ["quarantine_share"]
    assert (found.staged.rows, found.staged.quarantined) == (1, 9)


def test_tables_with_the_generation_in_their_names_are_renamed_and_keep_their_state(scene: Scene) -> None:
    before = scene.table.metadata
    main, quarantine = scene.stream.table, quarantine_table_name(scene.stream.table)
    for name in (main, quarantine):
        scene.catalog.rename_table(name, name_with_generation(name, 1))
    with services_of(scene.config) as services:
        assert find_hold(services, scene.config, "flights") is None, "commands find the earlier names"
    hold(scene)
    assert scene.table.metadata.table_uuid == before.table_uuid
    assert read_progress(scene.table.metadata, "t") == {TP: 10}
    release(scene)
    scene.check_exactly_once()
