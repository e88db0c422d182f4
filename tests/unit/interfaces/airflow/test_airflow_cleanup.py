"""The cleanup of Airflow's database: which commands run, in which environment, and what their failure becomes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from waybill.base.errors import AirflowCleanupFailed, ConfigError
from waybill.interfaces.airflow.airflow_cleanup import DATABASE_VARIABLE, clean_airflow_database

NOW = datetime(2026, 7, 31, 3, 30, tzinfo=UTC)
HIDDEN = "airflow-db-not-allowed:///"

# Stands for `airflow`: it records its calls, and answers as the variables say.
_AIRFLOW = """
import json, os, sys
with open(os.environ["CALLS"], "a") as calls:
    calls.write(json.dumps({"arguments": sys.argv[1:], "environment": dict(os.environ)}) + "\\n")
if sys.argv[1] == "dags":
    print("2026-07-31T03:30:00Z [warning  ] Could not import graphviz. [py.warnings]")
    print(os.environ["RUNS"])
else:
    print("Found 7 rows meeting deletion criteria.")
    sys.exit(int(os.environ["CLEAN_EXIT"]))
"""

Calls = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Replace `python -m airflow` by a script, within a task's environment; return its calls so far."""
    package = tmp_path / "airflow"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(_AIRFLOW)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("RUNS", json.dumps([{"dag_id": "airflow_cleanup", "run_id": "scheduled__now"}]))
    monkeypatch.setenv("CLEAN_EXIT", "0")
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", HIDDEN)
    monkeypatch.setenv("AIRFLOW__CORE__SQL_ALCHEMY_CONN", HIDDEN)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.delenv(DATABASE_VARIABLE, raising=False)
    return lambda: [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]


def clean(*, run_id: str = "scheduled__now", days: int = 30, dry_run: bool = False) -> None:
    clean_airflow_database("airflow_cleanup", run_id, timedelta(days=days), NOW, dry_run=dry_run)


def test_clean_removes_rows_before_the_retention_and_reports_tables_that_fail(calls: Calls) -> None:
    clean(days=30)
    lookup, command = (call["arguments"] for call in calls())
    assert lookup[:3] == ["dags", "list-runs", "airflow_cleanup"]
    assert command[:4] == ["db", "clean", "--clean-before-timestamp", "2026-07-01T03:30:00+0000"]
    assert {"--yes", "--skip-archive", "--error-on-cleanup-failure"} <= set(command)
    assert "--dry-run" not in command


def test_dry_run_is_passed_on(calls: Calls) -> None:
    clean(dry_run=True)
    assert "--dry-run" in calls()[-1]["arguments"]


def test_commands_do_not_get_the_settings_by_which_airflow_hides_its_database(calls: Calls) -> None:
    clean()
    for call in calls():
        assert HIDDEN not in call["environment"].values()
        assert call["environment"]["AIRFLOW_HOME"] == os.environ["AIRFLOW_HOME"]
    assert os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] == HIDDEN  # this process keeps it


def test_database_variable_replaces_the_hidden_setting(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATABASE_VARIABLE, "postgresql://airflow@db/airflow")
    clean()
    settings = {call["environment"]["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] for call in calls()}
    assert settings == {"postgresql://airflow@db/airflow"}


@pytest.mark.parametrize("runs", ["[]", '[{"run_id": "another"}]', "No data found"])
def test_a_database_without_this_run_is_not_cleaned(calls: Calls, monkeypatch: pytest.MonkeyPatch, runs: str) -> None:
    monkeypatch.setenv("RUNS", runs)
    with pytest.raises(ConfigError, match=f"does not find the database.*\n.*{DATABASE_VARIABLE}"):
        clean()
    assert [call["arguments"][0] for call in calls()] == ["dags"]


def test_failed_command_is_an_error_that_a_retry_may_remove(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEAN_EXIT", "1")
    with pytest.raises(AirflowCleanupFailed, match=r"exit code 1(.|\n)*Found 7 rows") as caught:
        clean()
    assert caught.value.retriable
