"""The status document that a watch of the real stack stores, and the log of actions in it."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from archived_stream import ArchivedStream
from typer.testing import CliRunner

from devstack import Stack
from waybill.base.decision import Decision, Surface
from waybill.config.names import TopicPartition, status_key
from waybill.interfaces.cli.app import app
from waybill.interfaces.operations.catalogue import PAUSE
from waybill.interfaces.operations.declaration import OperationName, Role
from waybill.interfaces.web.actions import Order
from waybill.interfaces.web.frame import Links, Viewer
from waybill.interfaces.web.perform import PERFORM
from waybill.interfaces.web.stream_page import stream_page
from waybill.interfaces.web.streams_page import streams_page
from waybill.interfaces.web.trace import PageTracer
from waybill.interfaces.web.trace_page import TraceQuery
from waybill.services.store import Store
from waybill.watch.incidents.finding import Verdict
from waybill.watch.promises import status_writer
from waybill.watch.promises.action_log import (
    ActionOutcome,
    ActionPlace,
    ActionRecord,
    find_action,
    list_actions,
    record_action,
    record_outcome,
)
from waybill.watch.promises.status import WatchStatus
from waybill.watch.promises.watch_run import run_watch

pytestmark = pytest.mark.integration

MINUTE = 60_000
START_MS = int(time.time() * 1000)  # rows count as published in the last hour


class Shown(ArchivedStream):
    """A stream whose status a watch stores, at times that the test chooses."""

    def __init__(self, directory: Path, topic: str, **options: Any) -> None:
        super().__init__(directory, topic, **options)
        self.directory = directory
        self.now_ms = START_MS

    def watch(self, minutes: int = 1) -> WatchStatus:
        """Watch, and return what the pages then show."""
        self.now_ms += minutes * MINUTE
        run_watch(self.config, now_ms=lambda: self.now_ms, directory=self.directory)
        return self.stored()

    def stored(self) -> WatchStatus:
        """Return the stored document."""
        with Store.of(self.config.storage) as store:
            return WatchStatus.parse(store.read(status_key(store.prefix)), "status")

    def order(self, **fields: str) -> Order:
        """Return an order of ada."""

        def trigger(dag: str, form: object, run: str) -> None:
            raise AssertionError(f"{dag} {form} {run}")

        return Order(
            PAUSE,
            self.config,
            fields,
            Decision("a reason", "ada", Surface.PAGE),
            "r1",
            trigger,
            lambda dag, run: f"/{dag}/{run}",
        )


@pytest.fixture
def shown(stack: Stack, tmp_path: Path, topic_name: str) -> Shown:
    return Shown(tmp_path, topic_name)


def test_the_document_follows_messages_from_kafka_through_s3_to_the_table(shown: Shown) -> None:
    shown.produce_events(10)
    [stream] = shown.watch().streams
    assert sum(tp.lag for tp in stream.topic_partitions) == 10
    shown.ingest()
    shown.produce_events(10)
    shown.partition()
    status = shown.watch(6)
    [stream] = status.streams
    assert sum(tp.lag for tp in stream.topic_partitions) == 10
    assert sum(tp.committed - tp.archived_from for tp in stream.topic_partitions) == 10
    assert sum(tp.table_lag or 0 for tp in stream.topic_partitions) == 0
    assert stream.rows["main"] == 10
    assert [run.rows for run in stream.runs if run.stage == "partition"] == [10]
    assert stream.produced_per_second == pytest.approx(10 / 360, rel=0.01)
    assert [point.behind for point in stream.trend] == [10, 10]
    assert stream.details is not None
    assert stream.details.unread == {}
    assert {each.name: each.verdict for each in status.services}["Kafka"] is Verdict.KEPT
    links, viewer = Links("/waybill/ui", ""), Viewer("ada", Role.ADMIN)
    assert [row.name for row in streams_page(status, links, viewer, shown.now_ms).rows] == [stream.name]
    assert stream_page(status, stream, links, viewer, shown.now_ms).rows[0][0] == "rows in the table"


def test_while_kafka_is_away_the_offsets_are_those_of_before_with_their_time(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown.produce_events(10)
    before = shown.watch()
    variable = next(name for name in __import__("os").environ if name.startswith("AIRFLOW_CONN_") and "KAFKA" in name)
    monkeypatch.setenv(variable, '{"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:1"}}')
    status = shown.watch(2)
    [stream], [was] = status.streams, before.streams
    assert {each.name: each.verdict for each in status.services}["Kafka"] is Verdict.BROKEN
    assert {each.name: each.answered_ms for each in status.services}["Kafka"] == before.at_ms
    assert stream.topic_partitions == was.topic_partitions
    assert (stream.logs_ms, status.at_ms) == (before.at_ms, before.at_ms + 2 * MINUTE)


def test_a_document_that_cannot_be_made_does_not_hinder_the_watch(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = shown.watch()

    def fail(*_: object) -> None:
        raise RuntimeError("a mistake in the pages")

    monkeypatch.setattr(status_writer, "stream_statuses", fail)
    report = run_watch(shown.config, now_ms=lambda: shown.now_ms + MINUTE, directory=shown.directory)
    assert report.broken == []
    assert shown.stored() == before


def test_actions_are_listed_with_their_outcome_the_newest_first(shown: Shown) -> None:
    with Store.of(shown.config.storage) as store:
        # The page of the second action was opened before that of the first.
        places = [ActionPlace(shown.now_ms - number, f"{number:024x}") for number in range(2)]
        fields = {"stream": "events"}
        first = ActionRecord.of(places[0], shown.now_ms, "ada", "pause", fields, "why", "waybill pause events")
        second = ActionRecord.of(places[1], shown.now_ms + 1, "bob", "resume", fields, "why", "waybill resume events")
        assert record_action(store, first)
        assert not record_action(store, replace(first, at_ms=shown.now_ms + 1)), "the same form, sent again"
        record_outcome(store, first, ActionOutcome(True, "paused"))
        assert record_action(store, second)
        assert find_action(store, places[0]) == (first, ActionOutcome(True, "paused"))
        assert find_action(store, places[1]) == (second, None)
        assert find_action(store, ActionPlace(1, "0" * 24)) is None
        assert list_actions(store, shown.now_ms) == [(second, None), (first, ActionOutcome(True, "paused"))]
    [newest, oldest] = shown.watch().actions
    assert (newest.by, newest.outcome) == ("bob", "no outcome is recorded")
    assert (oldest.by, oldest.outcome) == ("ada", "paused")


def test_a_pause_by_a_click_is_the_pause_of_the_command(shown: Shown) -> None:
    shown.produce_events(1)
    [name] = shown.config.streams
    outcome = PERFORM[OperationName.PAUSE](shown.order(stream=name))
    assert outcome.is_done
    [stream] = shown.watch().streams
    assert {(pause.by, pause.reason) for pause in stream.pauses} == {("ada", "a reason")}
    assert PERFORM[OperationName.RESUME](shown.order(stream=name)).is_done
    [stream] = shown.watch().streams
    assert stream.pauses == ()


def test_a_trace_follows_a_message_to_its_object_and_its_row(shown: Shown) -> None:
    from waybill.watch.trace import find_places, open_services, trace_message

    shown.produce_events(10)
    shown.ingest()
    shown.partition()
    shown.produce_events(1)
    [name] = shown.config.streams
    [tp, *_] = [each for each in shown.watch().streams[0].topic_partitions if each.committed]
    where = TopicPartition(tp.topic, tp.partition)
    with open_services(shown.config) as services:
        began = time.monotonic()
        traced = trace_message(services, shown.config, name, where, 0)
        assert time.monotonic() - began < 1
        assert traced.object is not None
        assert traced.message is not None
        assert traced.row is not None
        assert (traced.row["offset"], traced.row["value"]) == (0, traced.message["value"])
        assert not traced.is_quarantined
        began = time.monotonic()
        assert (where, 0) in find_places(services, shown.config, name, traced.row["message_id"])
        assert time.monotonic() - began < 1
        page = PageTracer(lambda: shown.config)
        links = Links("/waybill/ui", "")
        [view] = page(TraceQuery(topic=tp.topic, partition=str(tp.partition), offset="0"), links, (name,)).found
        assert (view.archive_text, view.row_text) == ("archived", "published")
        assert view.object is not None
        assert view.object.written.startswith("20"), "when S3 stored the object"
        assert page.value(TraceQuery(topic=tp.topic, partition=str(tp.partition), offset="0")) == traced.row["value"]
        [by_id] = page(TraceQuery(stream=name, id=traced.row["message_id"]), links, (name,)).found
        assert by_id.place == view.place
        assert "no table has" in page(TraceQuery(id="none"), links, (name,)).problem
        waiting = trace_message(services, shown.config, name, where, tp.end)
        assert (waiting.object, waiting.row) == (None, None)


def test_the_command_prints_what_the_page_shows(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    shown.produce_events(3)
    shown.ingest()
    shown.partition()
    [name] = shown.config.streams
    [tp, *_] = [each for each in shown.watch().streams[0].topic_partitions if each.committed]
    monkeypatch.setenv("WAYBILL_CONFIG", str(shown.file))
    place = f"{tp.topic}/{tp.partition}@0"
    printed = CliRunner().invoke(app, ["trace", name, place])
    assert printed.exit_code == 0, printed.output
    assert f"{place} of {name}" in printed.output
    [document] = json.loads(CliRunner().invoke(app, ["trace", name, place, "--json"]).output)
    assert document["row"]["offset"] == 0
    by_id = CliRunner().invoke(app, ["trace", name, "--id", document["row"]["message_id"], "--json"])
    assert json.loads(by_id.output) == [document]
