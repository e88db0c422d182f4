"""The DAGs of groups: what Airflow shows of the results of an application, and which assets it updates."""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowFailException
from group_configs import StoreInMemory, config_of

from waybill.config.models import Config
from waybill.config.models.groups import group_dag_id
from waybill.config.names import Stage
from waybill.interfaces.airflow import groups
from waybill.interfaces.airflow.groups import (
    partition_assets,
    read_group_report,
    report_stream,
)
from waybill.interfaces.airflow.run_params import streams_param
from waybill.interfaces.airflow.spark_submit import SubmitGroup, is_retry
from waybill.services.store import Store
from waybill.tables.spark.group_results import ResultsRecorder, StreamOutcome, StreamResult

CONFIG = config_of(
    a={}, b={"partition": {"group": "large"}}, c={"partition": {"group": "own"}}, d={"partition": {"group": "large"}}
)
DONE = StreamResult("a", StreamOutcome.DONE, committed=True, rows=5, lines=("partitioned a: 5 rows",))
NOTHING = StreamResult("b", StreamOutcome.NOTHING_NEW)
ALERT = StreamResult("c", StreamOutcome.DONE, committed=True, alerts=("c: half went to quarantine",))
FAILED = StreamResult("d", StreamOutcome.FAILED, error="ParserBroken", message="parser x raised")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> StoreInMemory:
    made = StoreInMemory()

    @contextmanager
    def opened(_: object) -> Iterator[StoreInMemory]:
        yield made

    monkeypatch.setattr("waybill.services.store.Store", Namespace(of=opened))
    return made


def record(store: StoreInMemory, *results: StreamResult, job: Stage = Stage.PARTITION, ended: bool = True) -> None:
    recorder = ResultsRecorder(cast("Store", store), "default", str(job), "r1", ["a", "b", "c", "d"])
    for result in results:
        recorder.add(result)
    if ended:
        recorder.end()


def names_of(assets: list[Asset]) -> list[str]:
    return [asset.name for asset in assets]


def test_streams_that_did_something_or_failed_have_tasks_and_update_their_tables(store: StoreInMemory) -> None:
    record(store, DONE, NOTHING, ALERT, FAILED)
    report = read_group_report(CONFIG, Stage.PARTITION, "default", "r1")
    assert [task["stream"] for task in report.tasks] == ["c", "d", "a"], "those to look at come first"
    assert {task["stream"]: task["asset"] and task["asset"]["name"] for task in report.tasks} == {
        "a": "x.a",
        "c": None,
        "d": None,
    }
    assert names_of(report.assets) == ["partition", "x.c"], "a failed task updates nothing, so this one does"


def test_a_run_without_a_commit_updates_no_asset(store: StoreInMemory) -> None:
    record(store, NOTHING, FAILED, StreamResult("a", StreamOutcome.NOTHING_NEW), StreamResult("c", StreamOutcome.DONE))
    report = read_group_report(CONFIG, Stage.PARTITION, "default", "r1")
    assert report.assets == []
    assert [task["asset"] for task in report.tasks] == [None, None]


def test_dedup_and_maintenance_update_no_asset(store: StoreInMemory) -> None:
    record(store, DONE, ALERT, job=Stage.DEDUP)
    report = read_group_report(CONFIG, Stage.DEDUP, "default", "r1")
    assert report.assets == []
    assert [task["asset"] for task in report.tasks] == [None, None]


def test_an_application_that_did_not_come_to_its_end_has_a_failed_task(store: StoreInMemory) -> None:
    record(store, DONE, ended=False)
    report = read_group_report(CONFIG, Stage.PARTITION, "default", "r1")
    assert [task["stream"] for task in report.tasks] == ["(the application)", "a"]
    with pytest.raises(AirflowFailException, match="ended before 3 streams had a result: b, c, d"):
        report_stream(Stage.PARTITION, report.tasks[0])


def test_an_application_without_results_fails_the_task_that_reads_them(store: StoreInMemory) -> None:
    with pytest.raises(AirflowFailException, match="partition has written no results for run r1"):
        read_group_report(CONFIG, Stage.PARTITION, "default", "r1")
    record(store, DONE)
    with pytest.raises(AirflowFailException, match="no results for run r2"):
        read_group_report(CONFIG, Stage.PARTITION, "default", "r2")


def test_more_streams_than_airflow_maps_leave_the_rest_to_the_task_results(
    store: StoreInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "_MOST_STREAM_TASKS", 2)
    record(store, DONE, ALERT, FAILED)
    report = read_group_report(CONFIG, Stage.PARTITION, "default", "r1")
    assert [task["stream"] for task in report.tasks] == ["c", "d"]
    assert names_of(report.assets) == ["partition", "x.a", "x.c"]


def test_a_streams_task_shows_its_report_and_fails_with_its_problems(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        report_stream(Stage.PARTITION, DONE.document())
    assert "partitioned a: 5 rows" in caplog.text
    with pytest.raises(AirflowFailException, match="ParserBroken: parser x raised"):
        report_stream(Stage.PARTITION, FAILED.document())
    with pytest.raises(AirflowFailException, match="c: half went to quarantine"):
        report_stream(Stage.PARTITION, ALERT.document())


@pytest.mark.parametrize(
    ("streams", "assets"),
    [(["a"], ["partition"]), (["b", "d", "a", "c"], ["partition_group__large", "partition", "x.c"])],
)
def test_sweeps_start_after_the_partition_runs_of_their_streams(streams: list[str], assets: list[str]) -> None:
    assert names_of(partition_assets(CONFIG, streams)) == assets


def test_a_stream_that_the_group_does_not_have_is_refused_with_the_known_ones() -> None:
    param = streams_param(["a", "b"])
    assert param.resolve() == []
    assert param.resolve(["b"]) == ["b"]
    with pytest.raises(Exception, match=r"'x' is not one of \['a', 'b'\]"):
        param.resolve(["x"])


@pytest.mark.parametrize(
    ("max_tries", "try_number", "is_a_retry"),
    [(2, 1, False), (2, 2, True), (2, 3, True), (5, 4, False), (5, 5, True), (3, 2, False)],
)
def test_a_task_that_a_person_cleared_is_no_retry(max_tries: int, try_number: int, is_a_retry: bool) -> None:
    instance = Namespace(max_tries=max_tries, try_number=try_number, task=Namespace(retries=2))
    assert is_retry(instance) is is_a_retry


def test_an_application_is_submitted_for_the_selected_streams_of_the_run() -> None:
    submit = SubmitGroup(task_id="partition", job="partition", group="large", config=CONFIG)
    context = {
        "params": {"streams": ["b", "d"]},
        "run_id": "r1",
        "ti": Namespace(max_tries=2, try_number=2, task=Namespace(retries=2)),
    }
    assert submit.application_args == ["--group", "large"]
    assert submit.further_arguments(context) == ["--stream", "b", "--stream", "d", "--run", "r1", "--resume"]


def test_only_the_default_groups_dag_has_the_plain_name() -> None:
    assert group_dag_id(Stage.DEDUP, "default") == "dedup"
    assert group_dag_id(Stage.DEDUP, "large") == "dedup_group__large"


def test_results_of_a_stream_that_left_the_config_update_nothing(store: StoreInMemory) -> None:
    record(store, StreamResult("gone", StreamOutcome.DONE, committed=True))
    report: Any = read_group_report(cast("Config", CONFIG), Stage.PARTITION, "default", "r1")
    assert (report.tasks[0]["asset"], report.assets) == (None, [])
