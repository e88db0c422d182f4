"""One application for the streams of a job: exit codes, results, and what a retry of it does."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from group_configs import StoreInMemory, config_of

from waybill.base.errors import ParserBroken, StoreUnavailable
from waybill.config.names import Stage
from waybill.tables.spark import group_job
from waybill.tables.spark.group_job import Application, check_options, run_application
from waybill.tables.spark.job import job_parser
from waybill.tables.spark.side_by_side import StreamWork

CONFIG = config_of({"default": {"partition": {"parallel": 2}}}, a={}, b={}, c={}, d={"partition": {"group": "own"}})
Do = Callable[[Application, StreamWork], None]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> StoreInMemory:
    """The store of the application, which needs neither a config file nor services."""
    made = StoreInMemory()

    @contextmanager
    def services(*_: object) -> Iterator[Namespace]:
        yield Namespace(store=made, store_usage=lambda *_: None)

    monkeypatch.setattr(group_job, "services_of", services)
    monkeypatch.setattr(group_job, "load_valid_streams", lambda _: CONFIG)
    monkeypatch.setattr(group_job, "active_streams", lambda _config, _job, names: list(names))
    return made


def run(do: Do, *arguments: str) -> int:
    parser = job_parser("Partition.", "figures")
    options = parser.parse_args(list(arguments))
    check_options(parser, options)
    return run_application(Stage.PARTITION, options, lambda *_: pytest.fail("Spark is not needed"), do)


def results(store: StoreInMemory) -> dict[str, Any]:
    [text] = store.objects.values()
    document: dict[str, Any] = json.loads(text)
    return {**document, "streams": {each["stream"]: each for each in document["streams"]}}


class Faulty:
    """Work that fails for some streams, and remembers which streams it was done for."""

    def __init__(self, **faults: Exception) -> None:
        self.faults = faults
        self.streams: list[str] = []
        self.groups: set[bool] = set()

    def __call__(self, application: Application, work: StreamWork) -> None:
        self.streams.append(work.stream)
        self.groups.add(application.is_group)
        work.did_something = work.committed = True
        work.reports.append({"stream": work.stream})
        if work.stream in self.faults:
            raise self.faults[work.stream]


BROKEN, AWAY = ParserBroken("x.Parser", "raised"), StoreUnavailable("S3 is away")


def test_a_group_is_one_application_for_all_of_its_streams(store: StoreInMemory, tmp_path: Path) -> None:
    do, report = Faulty(), tmp_path / "report.json"
    assert run(do, "--group", "default", "--report", str(report)) == 0
    assert sorted(do.streams) == ["a", "b", "c"]
    assert do.groups == {True}
    assert json.loads(report.read_text()) == [{"stream": "a"}, {"stream": "b"}, {"stream": "c"}]
    assert store.objects == {}, "results are for a DAG run"


def test_one_stream_is_a_group_of_one(store: StoreInMemory) -> None:
    do = Faulty()
    assert run(do, "--stream", "d") == 0
    assert (do.streams, do.groups) == (["d"], {False})
    assert run(Faulty(d=BROKEN), "--stream", "d") == 1


def test_without_a_dag_run_the_exit_code_states_whether_all_streams_are_sound(store: StoreInMemory) -> None:
    def with_alert(_: Application, work: StreamWork) -> None:
        work.alerts += ["b: too much in quarantine"] if work.stream == "b" else []

    assert run(with_alert, "--group", "default", "--stream", "a") == 0
    assert run(with_alert, "--group", "default") == 1


def test_for_a_dag_run_the_exit_code_states_whether_another_try_helps(store: StoreInMemory) -> None:
    arguments = ("--group", "default", "--run", "r1")
    assert run(Faulty(b=BROKEN), *arguments) == 0
    assert (results(store)["ended"], results(store)["streams"]["b"]["error"]) == (True, "ParserBroken")
    assert run(Faulty(b=BROKEN, c=AWAY), *arguments) == 1
    assert results(store)["ended"]


def test_a_retry_works_only_on_streams_whose_failure_is_retriable(store: StoreInMemory) -> None:
    arguments = ("--group", "default", "--run", "r1")
    assert run(Faulty(b=BROKEN, c=AWAY), *arguments) == 1
    again = Faulty(b=BROKEN)
    assert run(again, *arguments, "--resume") == 0
    assert again.streams == ["c"]
    assert {name: each["status"] for name, each in results(store)["streams"].items()} == {
        "a": "done",
        "b": "failed",
        "c": "done",
    }
    cleared = Faulty()
    assert run(cleared, *arguments) == 0, "a run that a person starts again does all streams"
    assert sorted(cleared.streams) == ["a", "b", "c"]
    other = Faulty()
    assert run(other, "--group", "default", "--run", "r2", "--resume") == 0
    assert sorted(other.streams) == ["a", "b", "c"]


def test_streams_without_a_result_are_known_after_spark_has_ended(
    store: StoreInMemory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(group_job, "_is_alive", lambda _: False)
    arguments = ("--group", "default", "--run", "r1", "--parallel", "1")
    assert run(Faulty(b=RuntimeError("the JVM has gone")), *arguments) == 1
    assert (results(store)["ended"], sorted(results(store)["streams"])) == (False, ["a"])
    assert "Spark has ended: 2 streams were not worked on" in caplog.text


def test_an_unknown_stream_ends_the_job_with_the_known_ones(
    store: StoreInMemory, caplog: pytest.LogCaptureFixture
) -> None:
    assert run(Faulty(), "--group", "default", "--stream", "d") == 1
    assert "'d': not in the partition group 'default'; its streams: a, b, c" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give --stream STREAM or --group GROUP"),
        (("--stream", "a", "--run", "r"), "--run needs --group"),
        (("--group", "g", "--resume"), "--resume needs --run"),
        (("--group", "g", "--parallel", "0"), "give a number of at least 1"),
    ],
)
def test_options_that_contradict_each_other_are_a_usage_error(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser: ArgumentParser = job_parser("Partition.", "figures")
    with pytest.raises(SystemExit):
        check_options(parser, parser.parse_args(arguments))
    assert message in capsys.readouterr().err
