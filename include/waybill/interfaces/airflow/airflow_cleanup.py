"""Remove old rows from Airflow's own database, with `airflow db clean` in separate processes.

Airflow 3 hides its database from tasks: in a task's process and environment it replaces the setting
`[database] sql_alchemy_conn` by one that no client accepts. A command that the task starts inherits the environment,
but not the process. So the command gets the environment without the replaced variables, and Airflow reads the setting
from its other places: `airflow.cfg`, `AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_CMD` or `…_SECRET`, or the default, a SQLite
file in AIRFLOW_HOME. If the deployment sets it in the variable itself, the task cannot read the value. Then the same
value must also be in `WAYBILL_AIRFLOW_DATABASE`, which Airflow does not change.

A worker may also find another database than the scheduler's, such as an empty SQLite file, and a cleanup of that
database would succeed and do nothing. So the first command checks that the database has the task's DAG run.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime, timedelta

from waybill.base.errors import AirflowCleanupFailed, ConfigError

logger = logging.getLogger(__name__)

DATABASE_VARIABLE = "WAYBILL_AIRFLOW_DATABASE"
"""The environment variable with the SQLAlchemy URL of Airflow's database, if tasks cannot find it otherwise."""

_CONNECTION_VARIABLE = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"
_REPLACED_BY_AIRFLOW = (_CONNECTION_VARIABLE, "AIRFLOW__CORE__SQL_ALCHEMY_CONN", "_AIRFLOW_PROCESS_CONTEXT")
_BATCH_ROWS = 10_000
"""Rows per transaction: the scheduler must not wait long for a lock."""

_LOOKUP_SECONDS = 300
_SHOWN_LINES = 10


def clean_airflow_database(dag_id: str, run_id: str, keep: timedelta, now: datetime, *, dry_run: bool) -> None:
    """Remove the rows of Airflow's database that are older than `keep`, and log what the command prints.

    `dag_id` and `run_id` name the running DAG run, by which the database is recognised. With `dry_run` the command only
    counts the rows.

    Raises `ConfigError` if the command would use another database, `AirflowCleanupFailed` if it fails for a table.
    """
    environment = _environment(os.environ)
    _check_database(dag_id, run_id, environment)
    before = f"{now - keep:%Y-%m-%dT%H:%M:%S%z}"
    command = [
        "db",
        "clean",
        "--clean-before-timestamp",
        before,
        "--yes",
        "--skip-archive",
        "--error-on-cleanup-failure",
    ]
    command += ["--batch-size", str(_BATCH_ROWS), *(["--dry-run"] if dry_run else [])]
    logger.info("airflow %s", " ".join(command))
    lines = []
    with subprocess.Popen(
        [sys.executable, "-m", "airflow", *command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if text := line.rstrip():
                lines.append(text)
                logger.info("%s", text)
    if process.returncode:
        raise AirflowCleanupFailed(
            f"airflow db clean ended with exit code {process.returncode}; rows that it did not remove are removed by "
            f"the next run. The end of its output:\n" + "\n".join(lines[-_SHOWN_LINES:])
        )


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that may use Airflow's database."""
    kept = {name: value for name, value in environment.items() if name not in _REPLACED_BY_AIRFLOW}
    if url := environment.get(DATABASE_VARIABLE):
        kept[_CONNECTION_VARIABLE] = url
    return kept


def _check_database(dag_id: str, run_id: str, environment: Mapping[str, str]) -> None:
    """Raise `ConfigError` unless the commands find the database that has this DAG run as running."""
    command = [sys.executable, "-m", "airflow", "dags", "list-runs", dag_id, "--state", "running", "--output", "json"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=_LOOKUP_SECONDS, check=False
    )
    if done.returncode == 0 and run_id in _run_ids(done.stdout):
        return
    reason = "\n".join((done.stderr or done.stdout).splitlines()[-_SHOWN_LINES:]) if done.returncode else "no such run"
    raise ConfigError(
        f"the worker of this task does not find the database that has the run {run_id} of {dag_id}: {reason}\n"
        f"Set {DATABASE_VARIABLE} in the workers' environment to the value of the scheduler's {_CONNECTION_VARIABLE}; "
        f"or pause this DAG, and run `airflow db clean` where the scheduler runs (docs/production-airflow.md)"
    )


def _run_ids(output: str) -> set[str]:
    """Return the run ids in the output of `airflow dags list-runs`, whose last line is JSON. Warnings precede it."""
    try:
        return {str(run["run_id"]) for run in json.loads(output.splitlines()[-1])}
    except (IndexError, ValueError, KeyError, TypeError):
        return set()
