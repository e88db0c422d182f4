"""DAG files: the DAGs that they define, and that parsing them imports no heavy library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

PROJECT = Path(__file__).parents[2]

_PARSE = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
before = set(sys.modules)
bag = DagBag(sys.argv[1])
heavy = {"pyspark", "pyarrow", "numba", "numpy", "pandas", "boto3", "kafka", "kazoo", "pyiceberg", "great_expectations"}
print("RESULT" + json.dumps({
    "errors": bag.import_errors,
    "tasks": {dag_id: sorted(t.task_id for t in dag.tasks) for dag_id, dag in bag.dags.items()},
    "outlets": {
        dag_id: sorted({asset.name for t in dag.tasks for asset in t.outlets}) for dag_id, dag in bag.dags.items()
    },
    "triggers": {
        dag_id: [asset.name for asset in dag.timetable.asset_condition.objects]
        for dag_id, dag in bag.dags.items() if dag.timetable.asset_condition
    },
    "crons": {dag_id: getattr(dag.timetable, "expression", None) for dag_id, dag in bag.dags.items()},
    "pools": {dag_id: sorted({t.pool for t in dag.tasks}) for dag_id, dag in bag.dags.items()},
    "streams": {
        dag_id: dag.params.get_param("streams").schema["items"]["enum"]
        for dag_id, dag in bag.dags.items() if "streams" in dag.params
    },
    "heavy": sorted(heavy & (set(sys.modules) - before)),
}))
"""


def parse_dags(tmp_path: Path, config: str) -> dict[str, Any]:
    """Parse the DAG files with this config in a process of its own, and return what Airflow found."""
    path = tmp_path / "streams.yaml"
    path.write_text(config)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AIRFLOW_")} | {
        "WAYBILL_CONFIG": str(path),
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    done = subprocess.run(
        [sys.executable, "-c", _PARSE, str(PROJECT / "dags")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.rpartition("RESULT")[2])
    return result


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


def test_fifty_streams_share_their_dags_and_import_nothing_heavy(tmp_path: Path) -> None:
    parsed = parse_dags(tmp_path, config_of(50))
    assert parsed["errors"] == {}
    assert parsed["heavy"] == []
    retries = {f"quarantine_retry__s{i}" for i in range(50)}
    assert waybill_dags(parsed) == {"ingest", "partition", "maintenance"} | retries
    assert parsed["tasks"]["ingest"] == ["lane", "plan", "report"]
    assert parsed["tasks"]["partition"] == ["partition", "results", "stream"]
    assert parsed["tasks"]["maintenance"] == ["maintain", "results", "stream"]
    assert parsed["tasks"]["quarantine_retry__s3"] == ["retry"]
    assert parsed["tasks"]["quality_decision"] == ["decide"]
    assert parsed["tasks"]["backfill"] == ["act", "build", "report"]
    assert parsed["streams"]["ingest"] == parsed["streams"]["partition"] == sorted(f"s{i}" for i in range(50))


def test_streams_that_leave_their_groups_have_dags_of_their_own(tmp_path: Path) -> None:
    parsed = parse_dags(tmp_path, config_of(2, own=True))
    assert parsed["errors"] == {}
    kinds = ("ingest", "partition", "maintenance", "quarantine_retry")
    assert waybill_dags(parsed) == {f"{kind}__s{i}" for kind in kinds for i in range(2)}
    assert parsed["tasks"]["ingest__s0"] == ["lane", "plan", "report"]
    assert parsed["tasks"]["partition__s1"] == ["check_alerts", "partition"]
    assert parsed["tasks"]["maintenance__s1"] == ["maintain"]


def test_a_group_has_its_own_dag_with_its_schedule_and_pool(tmp_path: Path) -> None:
    config = yaml.safe_load(config_of(3))
    config["groups"] = {"large": {"partition": {"schedule": "7 * * * *", "pool": "spark"}}, "unused": {}}
    config["streams"]["s1"]["partition"] = {"group": "large"}
    config["streams"]["s2"]["partition"] = {"schedule": "@daily", "pool": "slow"}
    parsed = parse_dags(tmp_path, yaml.safe_dump(config))
    assert parsed["errors"] == {}
    partitions = {dag_id for dag_id in waybill_dags(parsed) if dag_id.startswith("partition")}
    assert partitions == {"partition", "partition_group__large", "partition__s2"}
    assert parsed["streams"]["partition_group__large"] == ["s1"]
    assert parsed["crons"]["partition_group__large"] == "7 * * * *"
    assert parsed["pools"]["partition_group__large"] == ["spark"]
    assert parsed["pools"]["partition__s2"] == ["slow"]
    assert parsed["pools"]["partition"] == ["default_pool"]


def test_stream_with_a_files_sink_and_a_dag_of_its_own_has_a_finalizer(tmp_path: Path) -> None:
    config = yaml.safe_load(config_of(2, own=True))
    config["streams"]["s1"]["sink"] = "files"
    parsed = parse_dags(tmp_path, yaml.safe_dump(config))
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
    tmp_path: Path, partition: str, dedup: str, dag_id: str, trigger: str, tasks: list[str]
) -> None:
    config = yaml.safe_load(config_of(2))
    config["streams"]["s1"]["parser"]["message_id"] = "id"
    config["streams"]["s1"] |= {"partition": {"group": partition}, "dedup": {"group": dedup}}
    parsed = parse_dags(tmp_path, yaml.safe_dump(config))
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


@pytest.mark.parametrize("fault", ["version: 2", "streams: {s: {topics: []}}"])
def test_wrong_config_is_an_import_error_that_names_the_file(tmp_path: Path, fault: str) -> None:
    parsed = parse_dags(tmp_path, fault)
    assert waybill_dags(parsed) == set()
    assert len(parsed["errors"]) == 8
    assert all("ConfigError" in trace and "streams.yaml, line 1" in trace for trace in parsed["errors"].values())
