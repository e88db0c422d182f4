"""Backfills of a generation that is not live: built on its branch, compared with `main`, promoted and undone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from airflow.sdk.exceptions import AirflowFailException
from archived_stream import ArchivedStream
from backfill_scenes import Killed, die_at
from partition_scenes import mostly_deep

from waybill.archive.ingest import plan_lanes, run_lane
from waybill.base.errors import BackfillRefused
from waybill.interfaces.airflow.backfill import act_from_form, report_built, undo_from_form
from waybill.interfaces.airflow.forms import form_params
from waybill.interfaces.operations.catalogue import BACKFILL_FORM
from waybill.tables.backfill.choice import RangeChoice
from waybill.tables.backfill.generation_request import GenerationRequest
from waybill.tables.backfill.kinds import (
    change_backfill,
    find_backfill,
    plan_backfill,
    report_backfills,
    request_backfill,
    run_backfill,
)
from waybill.tables.backfill.planning import Trigger
from waybill.tables.backfill.report import BackfillReport, report_backfill
from waybill.tables.backfill.states import BackfillAction, BackfillState
from waybill.tables.partition.generations import promote_generation

pytestmark = [pytest.mark.integration, pytest.mark.matrix]

BUILD_STEPS = ["archived", "partitioned", "built", "diffed"]
CHANGE_STEPS = ["decided", "quarantine_moved", "moved"]


class TwoGenerations(ArchivedStream):
    """The stream `events` is generation 1 and live. `later` is generation 2: `id` is read from another field."""

    def declare(self, **changes: Any) -> None:
        """Add generation 2 to the config."""
        document = yaml.safe_load(self.file.read_text())
        first = document["streams"]["events"]
        document["streams"]["later"] = {**first, "generation": 2, "parser": {**first["parser"], "message_id": "name"}}
        document["streams"]["later"] |= changes
        self.file.write_text(yaml.safe_dump(document))

    def send(self, first: int, end: int, partition: int = 0) -> None:
        """Produce messages. Each tenth has no `time`, so both parsers send it to quarantine."""
        producer = self.producer()
        for n in range(first, end):
            value = {"id": f"first-{n}", "name": f"second-{n}"} | ({"time": "2026-01-02T00:00:00Z"} if n % 10 else {})
            producer.produce(self.topic, json.dumps(value).encode(), b"k", partition)
        assert producer.flush(30) == 0

    def ingest_later(self) -> None:
        for lane in plan_lanes(self.config, "later"):
            run_lane(self.config, lane)

    def plan(self, *offsets: str, stream: str = "events", **asked: Any) -> GenerationRequest:
        request, _ = plan_backfill(self.config, self._trigger(offsets, stream, asked))
        assert isinstance(request, GenerationRequest)
        return request

    def request(self, *offsets: str, stream: str = "events", **asked: Any) -> GenerationRequest:
        request, _ = request_backfill(self.config, self._trigger(offsets, stream, asked))
        assert isinstance(request, GenerationRequest)
        return request

    def _trigger(self, offsets: Sequence[str], stream: str, asked: dict[str, Any]) -> Trigger:
        choice = asked.pop("choice", None) or RangeChoice.parse(offsets=offsets, everything=not offsets)
        return Trigger(stream, choice, "anna", "other ids", **{"generation": 2, "source": "kafka", **asked})

    def build(self, request: GenerationRequest, **settings: Any) -> BackfillReport:
        return run_backfill(self.config, "events", request.id, **settings)

    def change(self, request: GenerationRequest, action: BackfillAction, **settings: Any) -> bool:
        changed = change_backfill(self.config, "events", request.id, action, by="anna", reason="agreed", **settings)
        return changed.is_new

    def seen(self) -> tuple[set[str], int]:
        """Return the message ids that readers of the table see, and the number of quarantined messages."""
        with self.catalog() as catalog:
            main = catalog.load_table(self.stream.table).scan(selected_fields=("message_id",)).to_arrow()
            quarantine = catalog.load_table(f"{self.stream.table}_quarantine").scan().to_arrow()
        assert len(set(main["message_id"].to_pylist())) == main.num_rows
        return set(main["message_id"].to_pylist()), quarantine.num_rows

    def verified(self) -> list[str]:
        """Return what `waybill verify` finds of both streams."""
        found = []
        for name in ("events", "later"):
            ran = self.waybill("verify", name, "--json")
            found += [f"{name}: {fault}" for report in ran.document for fault in report["faults"]]
        return found


def ids(parser: str, end: int, first: int = 0) -> set[str]:
    return {f"{parser}-{n}" for n in range(first, end) if n % 10}


@pytest.fixture
def scene(stack: Any, topic_name: str, tmp_path: Path) -> Iterator[TwoGenerations]:
    """Generation 1 has 30 messages of one topic-partition; generation 2 is declared and empty."""
    made = TwoGenerations(tmp_path, topic_name, partitions=1)
    made.send(0, 30)
    made.ingest()
    made.partition()
    made.declare()
    return made


# --- the whole path ---------------------------------------------------------------------------------------------------


def test_a_generation_is_archived_again_built_compared_promoted_and_undone(scene: TwoGenerations) -> None:
    _, figures = plan_backfill(scene.config, scene._trigger((), "events", {}))
    assert (figures.messages, figures.objects > 0, figures.size_bytes > 0) == (30, True, True)
    assert report_backfills_of(scene) == []
    request = scene.request()
    assert (request.stream, request.generation, request.live) == ("later", 2, 1)
    assert request.ranges.document() == {f"{scene.topic}/0": [0, 30]}
    report = scene.build(request)
    assert report.state is BackfillState.BUILT
    assert report.diff is not None
    found = report.diff.comparison
    assert (dict(found.messages), dict(found.columns)) == ({"changed": 27}, {"message_id": 27})
    assert found.unchanged == 3  # in quarantine, for the same reason
    assert scene.seen() == (ids("first", 30), 3)
    assert scene.change(request, BackfillAction.PROMOTE)
    assert not scene.change(request, BackfillAction.PROMOTE)
    assert scene.seen() == (ids("second", 30), 3)
    assert scene.change(request, BackfillAction.UNDO)
    assert not scene.change(request, BackfillAction.UNDO)
    assert scene.seen() == (ids("first", 30), 3)
    assert scene.change(request, BackfillAction.PROMOTE)
    assert scene.seen() == (ids("second", 30), 3)
    with scene.store() as store:
        events = report_backfill(store, find_backfill(store, scene.config, "later", request.id)).events
    assert [str(event.action) for event in events] == ["promote", "undo", "promote"]
    assert scene.verified() == []


def report_backfills_of(scene: TwoGenerations) -> list[BackfillReport]:
    with scene.store() as store:
        return report_backfills(store, "later")


def test_the_stream_of_the_generation_may_be_named_itself(scene: TwoGenerations) -> None:
    assert scene.plan(stream="later", generation=None).ranges == scene.plan().ranges


def test_live_runs_and_the_stream_s_own_runs_go_on_beside_a_build(scene: TwoGenerations) -> None:
    request = scene.request()

    def reached(step: str) -> None:
        if step == "archived":
            scene.send(30, 40)
            scene.ingest()
            scene.partition()
            scene.ingest_later()

    report = scene.build(request, on_step=reached)
    assert scene.seen() == (ids("first", 40), 4)
    assert report.diff is not None
    assert report.diff.comparison.messages["changed"] == 27  # up to the end of the log at the trigger
    scene.change(request, BackfillAction.PROMOTE)
    assert scene.seen() == (ids("second", 40), 4)
    assert scene.verified() == []


def test_what_is_archived_already_is_built_without_kafka(scene: TwoGenerations) -> None:
    with pytest.raises(BackfillRefused, match=r"the archive has nothing of generation 2 .*--source kafka"):
        scene.plan(source="archive")
    scene.ingest_later()
    scene.send(30, 40)
    request = scene.request(source="archive")
    assert request.ranges.document() == {f"{scene.topic}/0": [0, 30]}
    assert scene.build(request).state is BackfillState.BUILT


def test_what_only_the_live_generation_has_is_shown_as_removed(scene: TwoGenerations) -> None:
    scene.declare(start="latest")
    scene.ingest_later()
    scene.send(30, 40)
    with pytest.raises(BackfillRefused, match=r"offsets 20–34 are outside of .*: 30–39"):
        scene.plan(f"{scene.topic}/0@20-34")
    request = scene.request()
    report = scene.build(request)
    assert report.diff is not None
    assert dict(report.diff.comparison.messages) == {
        "added": 9, "added_to_quarantine": 1, "removed": 27, "removed_from_quarantine": 3,
    }  # fmt: skip


def test_a_range_is_built_up_to_its_end_and_compared_alone(scene: TwoGenerations) -> None:
    report = scene.build(scene.request(f"{scene.topic}/0@11-19"))
    assert report.diff is not None
    assert dict(report.diff.comparison.messages) == {"changed": 9}


# --- killed -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", mostly_deep(BUILD_STEPS, "partitioned"))
def test_a_build_killed_at_any_step_continues(scene: TwoGenerations, step: str) -> None:
    request = scene.request()
    with pytest.raises(Killed):
        scene.build(request, on_step=die_at(step))
    assert scene.seen() == (ids("first", 30), 3)
    assert scene.build(request).state is BackfillState.BUILT
    scene.change(request, BackfillAction.PROMOTE)
    assert scene.seen() == (ids("second", 30), 3)
    assert scene.verified() == []


@pytest.mark.deep
def test_a_build_killed_within_a_partition_run_continues(scene: TwoGenerations) -> None:
    request = scene.request()

    def die_after_one(work: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        work(tasks[0])
        raise Killed("after one task")

    with pytest.raises(Killed):
        scene.build(request, for_each=die_after_one)
    scene.build(request)
    scene.change(request, BackfillAction.PROMOTE)
    assert scene.seen() == (ids("second", 30), 3)


@pytest.mark.deep
@pytest.mark.parametrize("step", mostly_deep(CHANGE_STEPS, "quarantine_moved"))
def test_a_promotion_and_an_undo_killed_at_any_step_are_ended_by_the_same_command(
    scene: TwoGenerations, step: str
) -> None:
    request = scene.request()
    scene.build(request)
    for action, parser in ((BackfillAction.PROMOTE, "second"), (BackfillAction.UNDO, "first")):
        with pytest.raises(Killed):
            scene.change(request, action, on_step=die_at(step))
        scene.change(request, action)
        assert scene.seen() == (ids(parser, 30), 3)
    assert scene.verified() == []


# --- refused ----------------------------------------------------------------------------------------------------------


def test_what_cannot_be_granted_is_refused_with_the_valid_values(scene: TwoGenerations) -> None:
    def refused(match: str, *offsets: str, **asked: Any) -> None:
        with pytest.raises(BackfillRefused, match=match):
            scene.plan(*offsets, **asked)

    refused(r"it has: 1 \(stream events\), 2 \(stream later\)\. .* `generation: 3`", generation=3)
    refused(r"generation 1 of stream events is live", generation=1)
    refused(r"offsets 5–99 are outside of .*: 0–29", f"{scene.topic}/0@5-99")
    refused("instead of times", choice=RangeChoice.parse(since="2026-01-01"))
    request = scene.request()
    refused(f"is being built by backfill {request.id}, which anna")
    with pytest.raises(BackfillRefused, match="limits of their own"):
        scene.build(request, bytes_per_second=1e6)
    with pytest.raises(BackfillRefused, match="its tasks are not done"):
        scene.change(request, BackfillAction.PROMOTE)
    scene.change(request, BackfillAction.CANCEL)
    with pytest.raises(BackfillRefused, match="was cancelled"):
        scene.build(request)
    scene.build(scene.request())


@pytest.mark.deep
def test_an_undo_is_refused_when_a_third_generation_is_live(scene: TwoGenerations) -> None:
    request = scene.request()
    scene.build(request)
    scene.change(request, BackfillAction.PROMOTE)
    promote_generation(scene.config, "events", 1, by="ben", reason="not yet")
    assert scene.change(request, BackfillAction.PROMOTE), "it is not live any more, whatever the events say"
    assert scene.seen() == (ids("second", 30), 3)


def test_the_command_line_builds_and_promotes_a_generation(scene: TwoGenerations) -> None:
    planned = scene.waybill("backfill", "plan", "events", "--all", "--generation", "2", "--source", "kafka", "--json")
    assert planned.document["messages_at_most"] == 30
    ran = scene.waybill(
        "backfill", "run", "events", "--all", "--generation", "2", "--source", "kafka", "--reason", "x", "--json"
    )
    assert ran.code == 0, ran.err
    backfill = ran.document["id"]
    listed = scene.waybill("backfill", "status").out
    assert "generation 2" in listed
    assert "column message_id: 27 changed" in scene.waybill("backfill", "diff", "events", backfill).out
    promoted = scene.waybill("backfill", "promote", "events", backfill, "--reason", "agreed")
    assert promoted.out == f"events {backfill}: promoted\n", promoted.err
    assert scene.seen() == (ids("second", 30), 3)
    assert scene.waybill("backfill", "undo", "later", backfill, "--reason", "not yet").code == 0
    assert scene.seen() == (ids("first", 30), 3)


def test_the_form_requests_a_build_once(scene: TwoGenerations) -> None:
    form: dict[str, Any] = {name: param.value for name, param in form_params(BACKFILL_FORM, scene.config).items()}
    form |= {"action": "run", "stream": "events", "generation": 2, "source": "kafka", "everything": True, "reason": "x"}
    backfill = act_from_form(scene.config, form, "anna", "run-1")
    assert backfill == act_from_form(scene.config, form, "anna", "run-1"), "a retry of the task finds the request"
    assert backfill is not None
    run_backfill(scene.config, "events", backfill)
    assert report_built(scene.config, "events", backfill)["state"] == "built"
    changed = {**form, "action": "promote", "backfill": backfill, "everything": False}
    act_from_form(scene.config, changed, "anna", "run-2")
    assert scene.seen() == (ids("second", 30), 3)
    with pytest.raises(AirflowFailException, match="give the reason"):
        undo_from_form(scene.config, {"stream": "events", "backfill": backfill, "reason": "  "}, "anna")
    undo_from_form(scene.config, {"stream": "events", "backfill": backfill, "reason": "not yet"}, "anna")
    assert scene.seen() == (ids("first", 30), 3)
    with pytest.raises(AirflowFailException, match=r"it has: 1 \(stream events\), 2"):
        act_from_form(scene.config, {**form, "generation": 4}, "anna", "run-3")
