"""DAG files: the DAGs that they define, and that parsing them imports no heavy library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

PROJECT = Path(__file__).parents[2]

ParseDags = Callable[[str], dict[str, Any]]

_PARSE = """
import json, os, sys
from airflow.dag_processing.dagbag import DagBag
before = set(sys.modules)
heavy = {"pyspark", "pyarrow", "numba", "numpy", "pandas", "boto3", "kafka", "kazoo", "pyiceberg", "great_expectations"}

def parse(config):
    os.environ["WAYBILL_CONFIG"] = config
    bag = DagBag(sys.argv[1])
    return {
        "errors": bag.import_errors,
        "tasks": {dag_id: sorted(t.task_id for t in dag.tasks) for dag_id, dag in bag.dags.items()},
        "outlets": {
            dag_id: sorted({asset.name for t in dag.tasks for asset in t.outlets}) for dag_id, dag in bag.dags.items()
        },
        "triggers": {
            dag_id: [asset.name for asset in dag.timetable.asset_condition.objects]
            for dag_id, dag in bag.dags.items() if dag.timetable.asset_condition
        },
        "timeouts": {
            dag_id: {t.task_id: t.execution_timeout and t.execution_timeout.total_seconds() for t in dag.tasks}
            for dag_id, dag in bag.dags.items()
        },
        "run_timeouts": {
            dag_id: dag.dagrun_timeout and dag.dagrun_timeout.total_seconds() for dag_id, dag in bag.dags.items()
        },
        "crons": {dag_id: getattr(dag.timetable, "expression", None) for dag_id, dag in bag.dags.items()},
        "pools": {dag_id: sorted({t.pool for t in dag.tasks}) for dag_id, dag in bag.dags.items()},
        "streams": {
            dag_id: dag.params.get_param("streams").schema["items"]["enum"]
            for dag_id, dag in bag.dags.items() if "streams" in dag.params
        },
        "heavy": sorted(heavy & (set(sys.modules) - before)),
    }

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        print("RESULT" + json.dumps(parse(line.strip())), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    print("END", flush=True)
"""


@pytest.fixture(scope="module")
def parser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """A process that has imported Airflow, and parses the DAG files in a child for each config of its input."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AIRFLOW_")} | {
        "AIRFLOW_HOME": str(tmp_path_factory.mktemp("airflow")),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    with subprocess.Popen(
        [sys.executable, "-c", _PARSE, str(PROJECT / "dags")],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def parse_dags(parser: subprocess.Popen[str], tmp_path: Path) -> ParseDags:
    """Return a function that parses the DAG files with a config, and returns what Airflow found."""

    def parse(config: str) -> dict[str, Any]:
        assert parser.stdin is not None
        assert parser.stdout is not None
        path = tmp_path / "streams.yaml"
        path.write_text(config)
        parser.stdin.write(f"{path}\n")
        parser.stdin.flush()
        output = "".join(iter(parser.stdout.readline, "END\n"))
        result: dict[str, Any] = json.loads(output.rpartition("RESULT")[2])
        return result

    return parse


def config_of(streams: int, own: bool = False) -> str:
    """Return a config of streams, in the default groups or with DAGs of their own."""
    stream: dict[str, Any] = {"parser": {"event_time": {"field": "at"}}}
    if own:
        stream |= {section: {"group": "own"} for section in ("ingest", "partition", "maintenance")}
    return yaml.safe_dump(
        {
            "version": 1,
            "storage": {"bucket": "waybill"},
            "streams": {f"s{i}": {**stream, "topics": [f"t{i}"], "table": f"x.t{i}"} for i in range(streams)},
        }
    )


def waybill_dags(parsed: dict[str, Any]) -> set[str]:
    """Return the ids of DAGs of streams and groups."""
    kinds = ("ingest", "partition", "dedup", "maintenance", "quarantine_retry")
    return {dag_id for dag_id in parsed["tasks"] if dag_id.startswith(kinds)}


def test_fifty_streams_share_their_dags_and_import_nothing_heavy(parse_dags: ParseDags) -> None:
    parsed = parse_dags(config_of(50))
    assert parsed["errors"] == {}
    assert parsed["heavy"] == []
    assert waybill_dags(parsed) == {"ingest", "partition", "maintenance", "quarantine_retry"}
    assert parsed["tasks"]["ingest"] == ["lane", "plan", "report"]
    assert parsed["tasks"]["partition"] == ["partition", "results", "stream"]
    assert parsed["tasks"]["maintenance"] == ["maintain", "results", "stream"]
    assert parsed["tasks"]["quarantine_retry"] == ["retry"]
    assert parsed["tasks"]["quality_decision"] == ["decide"]
    assert parsed["tasks"]["backfill"] == ["act", "build", "report"]
    assert parsed["tasks"]["backfill_undo"] == ["undo"]
    assert parsed["streams"]["ingest"] == parsed["streams"]["partition"] == sorted(f"s{i}" for i in range(50))


def test_streams_that_leave_their_groups_have_dags_of_their_own(parse_dags: ParseDags) -> None:
    parsed = parse_dags(config_of(2, own=True))
    assert parsed["errors"] == {}
    own = {f"{kind}__s{i}" for kind in ("ingest", "partition", "maintenance") for i in range(2)}
    assert waybill_dags(parsed) == own | {"quarantine_retry"}
    assert parsed["tasks"]["ingest__s0"] == ["lane", "plan", "report"]
    assert parsed["tasks"]["partition__s1"] == ["check_alerts", "partition"]
    assert parsed["tasks"]["maintenance__s1"] == ["maintain"]


def test_a_group_has_its_own_dag_with_its_schedule_and_pool(parse_dags: ParseDags) -> None:
    config = yaml.safe_load(config_of(3))
    config["groups"] = {"large": {"partition": {"schedule": "7 * * * *", "pool": "spark"}}, "unused": {}}
    config["streams"]["s1"]["partition"] = {"group": "large"}
    config["streams"]["s2"]["partition"] = {"schedule": "@daily", "pool": "slow"}
    parsed = parse_dags(yaml.safe_dump(config))
    assert parsed["errors"] == {}
    partitions = {dag_id for dag_id in waybill_dags(parsed) if dag_id.startswith("partition")}
    assert partitions == {"partition", "partition_group__large", "partition__s2"}
    assert parsed["streams"]["partition_group__large"] == ["s1"]
    assert parsed["crons"]["partition_group__large"] == "7 * * * *"
    assert parsed["pools"]["partition_group__large"] == ["spark"]
    assert parsed["pools"]["partition__s2"] == ["slow"]
    assert parsed["pools"]["partition"] == ["default_pool"]


def test_every_task_and_every_run_has_a_timeout_which_the_config_sets_for_the_long_tasks(parse_dags: ParseDags) -> None:
    config = yaml.safe_load(config_of(2))
    for stream in config["streams"].values():
        stream["parser"]["message_id"] = "id"
        stream["dedup"] = {}
    config["groups"] = {"default": {"partition": {"timeout": "2h"}}}
    config["spark"] = {"backfill_timeout": "3d"}
    config["streams"]["s1"] |= {
        "ingest": {"group": "own", "budget": "4m", "lanes": 3},
        "maintenance": {"timeout": "45m"},
        "dedup": {"timeout": "90m"},
    }
    parsed = parse_dags(yaml.safe_dump(config))
    assert parsed["errors"] == {}
    timeouts, run_timeouts = parsed["timeouts"], parsed["run_timeouts"]
    assert [dag_id for dag_id, tasks in timeouts.items() if not all(tasks.values()) or not run_timeouts[dag_id]] == []
    hour = 3600
    assert timeouts["partition"]["partition"] == 2 * hour
    assert timeouts["maintenance__s1"]["maintain"] == 0.75 * hour
    assert timeouts["dedup__s1"]["sweep"] == 1.5 * hour
    assert timeouts["backfill"]["build"] == 72 * hour
    assert timeouts["ingest__s1"]["lane"] == 6 * 60
    assert run_timeouts["ingest__s1"] == 3 * 6 * 60 + 0.5 * hour
    assert run_timeouts["partition"] == 3 * (2 * hour + 0.5 * hour + 60)
    assert [dag_id for dag_id, tasks in timeouts.items() if run_timeouts[dag_id] < max(tasks.values())] == []


def test_stream_with_a_files_sink_and_a_dag_of_its_own_has_a_finalizer(parse_dags: ParseDags) -> None:
    config = yaml.safe_load(config_of(2, own=True))
    config["streams"]["s1"]["sink"] = "files"
    parsed = parse_dags(yaml.safe_dump(config))
    assert parsed["errors"] == {}
    assert parsed["tasks"]["partition__s0"] == ["check_alerts", "partition"]
    assert parsed["tasks"]["partition__s1"] == ["check_alerts", "finalize", "partition"]


@pytest.mark.parametrize(
    ("partition", "dedup", "dag_id", "trigger", "tasks"),
    [
        ("default", "default", "dedup", "partition", ["results", "stream", "sweep"]),
        ("large", "default", "dedup", "partition_group__large", ["results", "stream", "sweep"]),
        ("own", "default", "dedup", "x.t1", ["results", "stream", "sweep"]),
        ("default", "own", "dedup__s1", "x.t1", ["check_window", "merge", "sweep"]),
        ("own", "own", "dedup__s1", "x.t1", ["check_window", "merge", "sweep"]),
    ],
)
def test_stream_with_dedup_is_swept_after_partition_runs(
    parse_dags: ParseDags, partition: str, dedup: str, dag_id: str, trigger: str, tasks: list[str]
) -> None:
    config = yaml.safe_load(config_of(2))
    config["streams"]["s1"]["parser"]["message_id"] = "id"
    config["streams"]["s1"] |= {"partition": {"group": partition}, "dedup": {"group": dedup}}
    parsed = parse_dags(yaml.safe_dump(config))
    assert parsed["errors"] == {}
    assert parsed["heavy"] == []
    assert {found for found in parsed["tasks"] if found.startswith("dedup")} == {dag_id}
    assert parsed["tasks"][dag_id] == tasks
    assert parsed["triggers"][dag_id] == [trigger]
    if partition == "own":
        assert parsed["outlets"]["partition__s1"] == ["x.t1"]
    else:
        made_by = "partition" if partition == "default" else f"partition_group__{partition}"
        assert parsed["outlets"][made_by] == [f"{made_by}_updates"]


def test_replay_has_dags_only_with_its_section_in_the_config(parse_dags: ParseDags) -> None:
    config = yaml.safe_load(config_of(2))
    found = [dag_id for dag_id in parse_dags(yaml.safe_dump(config))["tasks"] if dag_id.startswith("replay")]
    assert found == []
    config["replay"] = {"workers": 3}
    parsed = parse_dags(yaml.safe_dump(config))
    assert (parsed["errors"], parsed["heavy"]) == ({}, [])
    tasks = {dag_id: tasks for dag_id, tasks in parsed["tasks"].items() if dag_id.startswith("replay")}
    assert tasks == {"replay": ["plan", "serve"], "replay_index": ["index"], "replay_request": ["create"]}
    assert parsed["crons"]["replay"] == "* * * * *"
    assert all(parsed["timeouts"]["replay"].values())


@pytest.mark.parametrize("fault", ["version: 2", "streams: {s: {topics: []}}"])
def test_wrong_config_is_an_import_error_that_names_the_file(parse_dags: ParseDags, fault: str) -> None:
    parsed = parse_dags(fault)
    assert waybill_dags(parsed) == set()
    assert len(parsed["errors"]) == 10
    assert all("ConfigError" in trace and "streams.yaml, line 1" in trace for trace in parsed["errors"].values())
