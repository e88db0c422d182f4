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
    "outlets": {dag_id: [asset.name for t in dag.tasks for asset in t.outlets] for dag_id, dag in bag.dags.items()},
    "triggers": {
        dag_id: [asset.name for asset in dag.timetable.asset_condition.objects]
        for dag_id, dag in bag.dags.items() if dag.timetable.asset_condition
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


def config_of(streams: int) -> str:
    stream = {"parser": {"event_time": {"field": "at"}}}
    return yaml.safe_dump(
        {
            "version": 1,
            "storage": {"bucket": "waybill"},
            "streams": {f"s{i}": {**stream, "topics": [f"t{i}"], "table": f"x.t{i}"} for i in range(streams)},
        }
    )


def test_fifty_streams_have_four_dags_each_and_import_nothing_heavy(tmp_path: Path) -> None:
    parsed = parse_dags(tmp_path, config_of(50))
    assert parsed["errors"] == {}
    assert parsed["heavy"] == []
    assert len(parsed["tasks"]) == 200
    assert parsed["tasks"]["ingest__s0"] == ["lane", "plan", "report"]
    assert parsed["tasks"]["partition__s49"] == ["check_quarantine", "partition"]
    assert parsed["tasks"]["quarantine_retry__s3"] == ["retry"]
    assert parsed["tasks"]["maintenance__s7"] == ["maintain"]


def test_stream_with_a_files_sink_has_a_finalizer(tmp_path: Path) -> None:
    config = yaml.safe_load(config_of(2))
    config["streams"]["s1"]["sink"] = "files"
    parsed = parse_dags(tmp_path, yaml.safe_dump(config))
    assert parsed["errors"] == {}
    assert parsed["tasks"]["partition__s0"] == ["check_quarantine", "partition"]
    assert parsed["tasks"]["partition__s1"] == ["check_quarantine", "finalize", "partition"]


def test_stream_with_dedup_is_swept_after_each_partition_run(tmp_path: Path) -> None:
    config = yaml.safe_load(config_of(2))
    config["streams"]["s1"]["parser"]["message_id"] = "id"
    config["streams"]["s1"]["dedup"] = {}
    parsed = parse_dags(tmp_path, yaml.safe_dump(config))
    assert parsed["errors"] == {}
    assert parsed["heavy"] == []
    assert parsed["tasks"]["dedup__s1"] == ["check_window", "merge", "sweep"]
    assert "dedup__s0" not in parsed["tasks"]
    assert parsed["outlets"]["partition__s1"] == parsed["triggers"]["dedup__s1"] == ["x.t1_g1"]


@pytest.mark.parametrize("fault", ["version: 2", "streams: {s: {topics: []}}"])
def test_wrong_config_is_an_import_error_that_names_the_file(tmp_path: Path, fault: str) -> None:
    parsed = parse_dags(tmp_path, fault)
    assert parsed["tasks"] == {}
    assert len(parsed["errors"]) == 5
    assert all("ConfigError" in trace and "streams.yaml, line 1" in trace for trace in parsed["errors"].values())
