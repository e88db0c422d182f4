"""The driver of staged jobs: the order of its steps, and what a retry and a rival find."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from waybill.tables.iceberg import CommitOutcome
from waybill.tables.staging.driver import NothingToCommit, RunOutcome, repeat_while_more, run_staged_job
from waybill.tables.staging.timing import StepClock


@dataclass(frozen=True)
class Plan:
    id: str = "p1"


@dataclass(frozen=True)
class Staged:
    run_id: str


@dataclass
class Storage:
    """What all runs of one stream share: the recorded files and the commits."""

    staged: Staged | None = None
    committed: list[Staged] = field(default_factory=list)


@dataclass
class Job:
    run_id: str
    storage: Storage
    plan: Plan | None = field(default_factory=Plan)
    ends_with: RunOutcome | None = None
    rival: Staged | None = None
    """Recorded by a rival while this job executes its tasks."""
    steps: list[str] = field(default_factory=list)
    discarded: list[Staged] = field(default_factory=list)

    @property
    def label(self) -> str:
        return f"job {self.run_id}"

    def find_or_create_plan(self) -> Plan | None:
        return self.plan

    def find_staged(self, plan: Plan) -> Staged | None:
        assert plan == self.plan
        return self.storage.staged

    def execute(self, plan: Plan) -> Staged:
        assert plan == self.plan
        if self.ends_with is not None:
            raise NothingToCommit(self.ends_with)
        self.steps.append("execute")
        self.storage.staged = self.rival
        return Staged(self.run_id)

    def record_staged(self, plan: Plan, staged: Staged) -> bool:
        assert plan == self.plan
        if self.storage.staged is not None:
            return False
        self.storage.staged = staged
        return True

    def discard(self, staged: Staged) -> None:
        self.discarded.append(staged)

    def commit(self, plan: Plan, staged: Staged) -> CommitOutcome:
        assert plan == self.plan
        if staged in self.storage.committed:
            return CommitOutcome.ADOPTED
        self.storage.committed.append(staged)
        return CommitOutcome.COMMITTED


class Killed(BaseException):
    pass


def run(job: Job, kill_at: str = "") -> tuple[RunOutcome, Staged | None]:
    def on_step(step: str) -> None:
        job.steps.append(step)
        if step == kill_at:
            raise Killed

    clock = StepClock()
    finished = run_staged_job(job, clock=clock, on_step=on_step)
    assert finished.plan == job.plan
    assert set(clock.seconds()) <= {"plan", "tasks", "commit", "total"}
    return finished.outcome, finished.staged


def test_a_job_goes_through_all_steps_in_order() -> None:
    job = Job("a", Storage())
    assert run(job) == (RunOutcome.COMMITTED, Staged("a"))
    assert job.steps == ["planned", "execute", "executed", "staged", "committed"]
    assert job.discarded == []


def test_a_job_without_input_ends_before_the_first_step() -> None:
    job = Job("a", Storage(), plan=None)
    assert run(job) == (RunOutcome.NOTHING_NEW, None)
    assert job.steps == []


@pytest.mark.parametrize("outcome", [RunOutcome.ADOPTED, RunOutcome.NOTHING_NEW])
def test_a_job_may_end_without_a_commit(outcome: RunOutcome) -> None:
    job = Job("a", Storage(), ends_with=outcome)
    assert run(job) == (outcome, None)
    assert (job.steps, job.storage.committed) == (["planned"], [])


@pytest.mark.parametrize(
    ("kill_at", "committed_run", "outcome", "steps"),
    [
        ("planned", "b", RunOutcome.COMMITTED, ["planned", "execute", "executed", "staged", "committed"]),
        ("executed", "b", RunOutcome.COMMITTED, ["planned", "execute", "executed", "staged", "committed"]),
        ("staged", "a", RunOutcome.COMMITTED, ["planned", "staged", "committed"]),
        ("committed", "a", RunOutcome.ADOPTED, ["planned", "staged", "committed"]),
    ],
)
def test_a_retry_continues_with_the_recorded_files_of_a_killed_run(
    kill_at: str, committed_run: str, outcome: RunOutcome, steps: list[str]
) -> None:
    storage = Storage()
    with pytest.raises(Killed):
        run(Job("a", storage), kill_at)
    retry = Job("b", storage)
    assert run(retry) == (outcome, Staged(committed_run))
    assert retry.steps == steps
    assert storage.committed == [Staged(committed_run)]


def test_a_run_that_records_its_files_second_discards_them_and_commits_those_of_its_rival() -> None:
    job = Job("a", Storage(), rival=Staged("b"))
    assert run(job) == (RunOutcome.COMMITTED, Staged("b"))
    assert job.discarded == [Staged("a")]
    assert job.storage.committed == [Staged("b")]


@dataclass(frozen=True)
class Report:
    number: int
    resumed: bool = False
    more: bool = False


def test_runs_are_repeated_while_input_is_left() -> None:
    reports = [Report(0, resumed=True), Report(1, more=True), Report(2), Report(3)]
    coming = iter(reports)
    assert list(repeat_while_more(lambda: next(coming))) == reports[:3]


def test_runs_after_the_first_one_may_differ() -> None:
    later = iter([Report(1, more=True), Report(2)])
    reports = repeat_while_more(lambda: Report(0, more=True), lambda: next(later))
    assert [report.number for report in reports] == [0, 1, 2]
