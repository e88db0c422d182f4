"""Airflow on SQLite with the LocalExecutor, and a client of its REST API.

Its four components are separate servers instead of one `airflow standalone`: each has its own log, and the stack
starts one again that ends (`standalone` continues without a scheduler).
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import httpx
from tenacity import RetryCallState, Retrying, retry_if_result, stop_after_delay, wait_exponential

from devstack.servers import ServerSpec, write_private
from waybill.base.errors import StackError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

USER = "admin"
MIGRATION_SERVER = "airflow-db"
SCHEDULER = "airflow-scheduler"
_COMPONENTS = ("scheduler", "dag-processor", "api-server", "triggerer")
_DATABASE_LOCKED_SECONDS = 120.0
_RESTARTS = 5
"""Airflow expects a supervisor: its scheduler ends when a query of its main loop finds SQLite locked for 5 s."""
_CONFIG_PROBLEMS = "config_problems.py"
_HEALTH = ("metadatabase", "scheduler", "dag_processor", "triggerer")


@dataclass(frozen=True)
class Airflow:
    """Airflow with its state in `directory`. `ports`: API server, task log server, trigger log server."""

    directory: Path
    project: Path
    """The checkout, whose dags/ and plugins/ Airflow reads."""
    ports: tuple[int, int, int]
    password: str
    connections: Mapping[str, str] = field(repr=False)
    """Environment variables of the tasks."""

    name = "airflow"

    @property
    def url(self) -> str:
        """The URL of the UI and the API."""
        return f"http://127.0.0.1:{self.ports[0]}"

    def client(self) -> AirflowClient:
        """Return a client, which logs in at its first request."""
        return AirflowClient(self.url, USER, self.password)

    def environment(self) -> dict[str, str]:
        """Return the environment variables with which an `airflow` command uses this Airflow."""
        local = "127.0.0.1,localhost"
        bin_directory = os.path.dirname(sys.executable)  # noqa: PTH120 (resolving the link would leave the environment)
        return {
            **self.connections,
            # Airflow's Spark provider looks for spark-submit on PATH.
            "PATH": f"{bin_directory}:{os.environ.get('PATH', '')}",
            "NO_PROXY": ",".join(filter(None, [os.environ.get("NO_PROXY"), local])),
            "no_proxy": ",".join(filter(None, [os.environ.get("no_proxy"), local])),
            "AIRFLOW_HOME": str(self.directory),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.project / "dags"),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(self.project / "plugins"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": "8",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self._passwords()),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.ports[0]),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__LOGGING__COLORED_CONSOLE_LOG": "False",
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(self.ports[1]),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(self.ports[2]),
            # New DAG files are found within 12 s (defaults: 300 and 5), and a changed one within a second or two.
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
            "AIRFLOW__DAG_PROCESSOR__BUNDLE_REFRESH_CHECK_INTERVAL": "2",
            # Files that did not change are parsed again for the config, which they read, each time in a new process:
            # most of the idle stack's CPU time (docs/decisions/0018). `touch dags/*.py` parses them at once.
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "60",
        }

    @property
    def database(self) -> Path:
        """The SQLite file of Airflow's database."""
        return self.directory / "airflow.db"

    def migration_spec(self, logs: Path) -> ServerSpec:
        """Return the process that migrates the metadata database. The components must start after its end."""
        self.directory.mkdir(parents=True, exist_ok=True)
        write_private(self._passwords(), json.dumps({USER: self.password}))
        return self._spec("db", ("db", "migrate"), logs, once=True)

    def specs(self, logs: Path) -> tuple[ServerSpec, ...]:
        """Return the four components."""
        return tuple(self._spec(component, (component,), logs) for component in _COMPONENTS)

    def _spec(self, name: str, arguments: tuple[str, ...], logs: Path, *, once: bool = False) -> ServerSpec:
        return ServerSpec(
            name=f"airflow-{name}",
            command=(sys.executable, "-m", "airflow", *arguments),
            log=logs / f"airflow-{name}.log",
            directory=self.directory,
            environment=self.environment(),
            # Without AIRFLOW__…: the settings of the user's own Airflow, such as its database. Without the other one:
            # each component and task would compile all of Airflow again, 30 instead of 16 CPU seconds at the start.
            drop_environment=("AIRFLOW__", "PYTHONDONTWRITEBYTECODE"),
            forks=True,
            once=once,
            restarts=0 if once else _RESTARTS,
        )

    def _passwords(self) -> Path:
        return self.directory / "passwords.json"

    def why_not_ready(self) -> str | None:
        """Return None if the API reports a healthy database and healthy components, else what is missing."""
        try:
            response = httpx.get(f"{self.url}/api/v2/monitor/health", timeout=5.0, trust_env=False)
            health: dict[str, dict[str, Any]] = response.raise_for_status().json()
        except (httpx.HTTPError, ValueError) as error:
            return f"Airflow's API does not answer: {error!r}"
        unhealthy = [name for name in _HEALTH if health[name]["status"] != "healthy"]
        return f"Airflow reports as not healthy yet: {', '.join(unhealthy)}" if unhealthy else None


# --- the client -------------------------------------------------------------------------------------------------------


class RunState(StrEnum):
    """The state of a DAG run."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """Whether the run is over."""
        return self in (RunState.SUCCESS, RunState.FAILED)


@dataclass(frozen=True)
class DagRun:
    """One DAG run."""

    dag_id: str
    run_id: str
    state: RunState
    start: datetime | None
    end: datetime | None


@dataclass(frozen=True)
class TaskInstance:
    """One task instance of a DAG run; `map_index` is -1 for a task that is not mapped."""

    task_id: str
    map_index: int
    state: str | None
    """The state's name in Airflow; None if the task is not scheduled yet."""
    try_number: int
    seconds: float | None


class AirflowClient:
    """A client of Airflow's REST API (v2), for the demo and the tests. Not thread-safe.

    Its methods raise `StackError` if Airflow does not answer or refuses the request.
    """

    def __init__(self, url: str, user: str, password: str) -> None:
        self._credentials = {"username": user, "password": password}
        # Without the environment's proxy: this is 127.0.0.1. On a busy machine the first answer may take a minute.
        self._http = httpx.Client(base_url=url, timeout=120.0, trust_env=False)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> AirflowClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def dag_ids(self) -> list[str]:
        """Return all DAGs that the DAG processor has found."""
        found: list[str] = []
        while True:  # a page has at most 100
            answer = self._get("/dags", limit=100, offset=len(found), order_by="dag_id")
            found += [dag["dag_id"] for dag in answer["dags"]]
            if not answer["dags"] or len(found) >= answer["total_entries"]:
                return found

    def import_errors(self) -> dict[str, str]:
        """Return the tracebacks of DAG files that cannot be imported, by file."""
        answer = self._get("/importErrors", limit=100)
        return {error["filename"]: error["stack_trace"] for error in answer["import_errors"]}

    def wait_for_dag(self, dag_id: str, *, seconds: float = 60.0) -> None:
        """Wait until Airflow has parsed `dag_id`. Raises `StackError` with the import errors after `seconds`."""
        end = time.monotonic() + seconds
        while dag_id not in self.dag_ids():
            # The file that shows errors of the config has no DAG, and its error stops no other file.
            errors = {file: trace for file, trace in self.import_errors().items() if _CONFIG_PROBLEMS not in file}
            if errors or time.monotonic() > end:
                details = "\n".join(f"{file}:\n{trace}" for file, trace in errors.items()) or "no import error"
                raise StackError(f"Airflow has no DAG {dag_id!r} (it has {self.dag_ids()}): {details}")
            time.sleep(0.5)

    def unpause(self, dag_id: str) -> None:
        """Unpause a DAG: the scheduler starts its runs."""
        self._request("PATCH", f"/dags/{dag_id}", json={"is_paused": False})

    def pause(self, dag_id: str) -> None:
        """Pause a DAG: the scheduler starts no more runs, and active runs continue."""
        self._request("PATCH", f"/dags/{dag_id}", json={"is_paused": True})

    def trigger(self, dag_id: str, conf: dict[str, Any] | None = None) -> str:
        """Trigger a run with these parameters, and return its run id. A run of a paused DAG stays queued."""
        # With an id of ours, a repeated request cannot create a second run.
        run_id = f"manual__{datetime.now(UTC).isoformat()}_{uuid.uuid4().hex[:8]}"
        body = {"dag_run_id": run_id, "logical_date": None, "conf": conf or {}}
        self._request("POST", f"/dags/{dag_id}/dagRuns", json=body)
        return run_id

    def create_connection(self, conn_id: str, connection: Mapping[str, Any]) -> None:
        """Create a connection in Airflow's database. `connection`: by Airflow's field names, with `extra` as a dict."""
        extra = json.dumps(connection.get("extra", {}))
        self._request("POST", "/connections", json={"connection_id": conn_id, **connection, "extra": extra})

    def call_plugin(self, method: str, path: str, body: Any = None, *, anonymous: bool = False) -> httpx.Response:
        """Call a plugin's path of the API server, as the user, or without a login, and return the answer."""
        if "Authorization" not in self._http.headers:
            self._log_in()
        headers = {"Authorization": ""} if anonymous else {}
        return self._http.request(method, path, json=body, headers=headers)

    def run(self, dag_id: str, run_id: str) -> DagRun:
        """Return one DAG run."""
        return _dag_run(self._get(f"/dags/{dag_id}/dagRuns/{run_id}"))

    def runs(self, dag_id: str) -> list[DagRun]:
        """Return the latest hundred runs of a DAG, newest first."""
        answer = self._get(f"/dags/{dag_id}/dagRuns", limit=100, order_by="-run_after")
        return [_dag_run(document) for document in answer["dag_runs"]]

    def task_instances(self, dag_id: str, run_id: str) -> list[TaskInstance]:
        """Return the task instances of a run, including mapped ones (at most a thousand)."""
        instances: list[TaskInstance] = []
        while len(instances) < 1000:
            page = self._get(f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances", limit=100, offset=len(instances))
            instances += [_task_instance(document) for document in page["task_instances"]]
            if not page["task_instances"] or len(instances) >= page["total_entries"]:
                break
        return instances

    def wait_for_run(
        self,
        dag_id: str,
        run_id: str,
        *,
        seconds: float,
        on_progress: Callable[[DagRun, list[TaskInstance]], None] | None = None,
        interval_seconds: float = 0.5,
    ) -> DagRun:
        """Wait until the run succeeds or fails, and return it. `on_progress` is called at each poll.

        Raises `StackError` if it has not ended after `seconds`.
        """
        end = time.monotonic() + seconds
        while True:
            run = self.run(dag_id, run_id)
            if on_progress is not None:
                on_progress(run, self.task_instances(dag_id, run_id))
            if run.state.ended:
                return run
            if time.monotonic() > end:
                raise StackError(f"run {run_id} of {dag_id} is still {run.state} after {seconds:.0f} s")
            time.sleep(interval_seconds)

    def log(self, dag_id: str, run_id: str, task: TaskInstance) -> str:
        """Return the log of a task's latest try, as text."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task.task_id}/logs/{task.try_number}"
        answer = self._get(path, map_index=task.map_index, full_content=True)
        return "\n".join(_log_line(entry) for entry in answer["content"])

    def failure_report(self, dag_id: str, run_id: str, *, lines: int = 30) -> str:
        """Return the end of the log of each failed task, for error messages."""
        failed = [task for task in self.task_instances(dag_id, run_id) if task.state == "failed"]
        reports = []
        for task in failed:
            tail = "\n".join(f"    {line}" for line in self.log(dag_id, run_id, task).splitlines()[-lines:])
            index = f"[{task.map_index}]" if task.map_index >= 0 else ""
            reports.append(f"{dag_id}.{task.task_id}{index} failed in run {run_id}. The end of its log:\n{tail}")
        return "\n".join(reports) or f"no task of {dag_id} failed in run {run_id}"

    def _get(self, path: str, **parameters: str | int) -> dict[str, Any]:
        return self._request("GET", path, params=parameters)

    def _request(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        try:
            if "Authorization" not in self._http.headers:
                self._log_in()
            response = self._send(method, path, options)
            if response.status_code == httpx.codes.UNAUTHORIZED:  # the token has expired
                self._log_in()
                response = self._send(method, path, options)
            if response.is_error:
                raise StackError(f"Airflow refused {method} {path}: {response.status_code} {response.text[:500]}")
            answer: dict[str, Any] = response.json()
        except (httpx.HTTPError, ValueError) as error:
            raise StackError(f"Airflow at {self._http.base_url} does not answer {method} {path}: {error!r}") from error
        return answer

    def _send(self, method: str, path: str, options: dict[str, Any]) -> httpx.Response:
        """Send a request. Repeat it while Airflow's database is locked.

        SQLite admits one writer. On a busy machine Airflow's scheduler holds the lock for longer than the API server
        waits for it, and the API server rolls its transaction back. All requests of this client name what they create
        or change, so a repetition changes nothing twice. A timeout of 60 s in SQLite is no remedy: Airflow's components
        waited for each other, and the first end-to-end test took 208 instead of 121 s. WAL made no difference (129 s).
        """
        retrying = Retrying(
            retry=retry_if_result(_is_database_locked),
            stop=stop_after_delay(_DATABASE_LOCKED_SECONDS),
            wait=wait_exponential(0.5, max=5),
            retry_error_callback=_last_response,
        )
        response: httpx.Response = retrying(self._http.request, method, f"/api/v2{path}", **options)
        return response

    def _log_in(self) -> None:
        response = self._http.post("/auth/token", json=self._credentials)
        response.raise_for_status()
        self._http.headers["Authorization"] = f"Bearer {response.json()['access_token']}"


def _is_database_locked(response: httpx.Response) -> bool:
    return response.status_code == httpx.codes.INTERNAL_SERVER_ERROR and "Database error" in response.text


def _last_response(state: RetryCallState) -> Any:
    assert state.outcome is not None
    return state.outcome.result()


def _dag_run(document: dict[str, Any]) -> DagRun:
    return DagRun(
        dag_id=document["dag_id"],
        run_id=document["dag_run_id"],
        state=RunState(document["state"]),
        start=_time(document["start_date"]),
        end=_time(document["end_date"]),
    )


def _task_instance(document: dict[str, Any]) -> TaskInstance:
    return TaskInstance(
        task_id=document["task_id"],
        map_index=document["map_index"],
        state=document["state"],
        try_number=document["try_number"],
        seconds=document["duration"],
    )


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text).astimezone(UTC) if text else None


def _log_line(entry: dict[str, Any] | str) -> str:
    if isinstance(entry, str):
        return entry
    parts = [str(entry[key]) for key in ("timestamp", "level", "event") if entry.get(key)]
    return " ".join([*parts, *_error_lines(entry.get("error_detail"))])


def _error_lines(details: Any) -> list[str]:
    return [f"\n{each.get('exc_type')}: {each.get('exc_value')}" for each in details or []]
