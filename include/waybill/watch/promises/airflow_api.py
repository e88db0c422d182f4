"""Requests to Airflow's REST API (v2) about Waybill's DAGs: unhealthy components, failed runs, tasks without progress.

A watch makes six requests, one of which fetches a token, and some more while a run has failed or a DAG is paused. It
asks Airflow's API and not its database, whose tables differ between versions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any, Self
from urllib.parse import quote

import httpx

from waybill.archive.ingest.services import FindConnection
from waybill.base.errors import AirflowUnavailable
from waybill.config.connections import AirflowEndpoint
from waybill.config.models import Config
from waybill.watch.incidents.failures import Failures

_TIMEOUT_SECONDS = 10.0
_PAGE = 100
_MOST_PAGES = 100
_MOST_TASK_PAGES = 10
_MOST_SINGLE_REQUESTS = 10
"""The most DAGs that are requested one by one, because their last run is not among the latest hundred."""
_HEALTHY = "healthy"
_OURS = {"tags": "waybill"}
_NOT_ENDED = ["scheduled", "queued", "running", "up_for_retry", "up_for_reschedule", "deferred", "restarting"]


@dataclass(frozen=True, slots=True)
class FailedTask:
    """A task instance that failed, with all its retries used."""

    task: str
    label: str
    """The name of the mapped task: for results of a group, the stream. '' for a task that is not mapped."""
    tries: int


@dataclass(frozen=True, slots=True)
class LastRun:
    """The newest ended run of a DAG."""

    dag: str
    run: str
    has_failed: bool
    ended_ms: int
    failed: tuple[FailedTask, ...] = ()
    """The tasks that failed; none if the run itself ran into its timeout."""


@dataclass(frozen=True, slots=True)
class WaitingTask:
    """A task instance that has not ended, of a run that is older than the limit."""

    dag: str
    run: str
    task: str
    is_running: bool
    since_ms: int
    """Since when the task runs or waits."""


@dataclass(frozen=True, slots=True)
class DagRunSpan:
    """A DAG run, and the time during which it was running."""

    dag: str
    run: str
    begun_ms: int
    ended_ms: int | None
    """None: it is still running."""


@dataclass(frozen=True, slots=True)
class AirflowState:
    """What Airflow shows."""

    unhealthy: tuple[str, ...] = ()
    """Components that have no recent heartbeat: scheduler, dag processor, triggerer, metadatabase."""
    runs: tuple[LastRun, ...] = ()
    """The runs of DAGs that failed recently or are running; all other DAGs succeeded."""
    unknown: frozenset[str] = frozenset()
    """Running DAGs whose last ended run could not be read."""
    tasks: tuple[WaitingTask, ...] = ()
    absent: Mapping[str, str] = field(default_factory=dict)
    """DAGs of Waybill that are missing in Airflow, and what Airflow reports about them."""
    paused: frozenset[str] = frozenset()
    """DAGs that are paused in Airflow."""
    queued_and_paused: frozenset[str] = frozenset()
    """Paused DAGs with a run that waits in the queue."""
    pools: frozenset[str] | None = None
    """The names of all pools; None: not known."""


class AirflowApi:
    """A client of Airflow's REST API for one watch.

    The methods raise the retriable `AirflowUnavailable` if Airflow does not answer, or refuses.
    """

    def __init__(self, endpoint: AirflowEndpoint) -> None:
        self._endpoint = endpoint
        # Without https, certificates are not needed, and loading them takes time.
        verify: Any = endpoint.tls.context() if endpoint.tls else False
        self._http = httpx.Client(
            base_url=endpoint.url, headers=endpoint.headers, timeout=_TIMEOUT_SECONDS, verify=verify
        )

    @classmethod
    def of(cls, config: Config, find: FindConnection) -> Self | None:
        """Return a client for the Airflow in the config; None if the config names no connection.

        Raises `ConfigError` for a connection that is missing or cannot be used.
        """
        if config.airflow.connection is None:
            return None
        return cls(AirflowEndpoint.of(find(config.airflow.connection)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._http.close()

    def state(
        self, dags: Collection[str], now_ms: int, oldest_ms: int, waiting: timedelta, failures: Failures
    ) -> AirflowState:
        """Return the state of `dags`. Runs that ended before `oldest_ms` count as succeeded.

        `waiting`: tasks of younger runs are left out. `failures`: collects each part that the user is not allowed to
        read, or that cannot be parsed. The state of DAGs that need the part is unknown.
        """
        health = self._request("GET", "/api/v2/monitor/health")
        unhealthy = tuple(
            name.replace("_", " ")
            # A component that this Airflow does not have has no status.
            for name, each in health.items()
            if isinstance(each, Mapping) and each.get("status") not in (None, _HEALTHY)
        )
        if "metadatabase" in unhealthy:  # then it answers no other request either
            return AirflowState(unhealthy, unknown=frozenset(dags))
        self._sign_in()
        everything = frozenset(dags)
        no_runs: tuple[tuple[LastRun, ...], frozenset[str]] = ((), everything)
        runs, unknown = failures.measure(
            "the DAG runs of Airflow", lambda: self._ended(dags, oldest_ms), lambda _: no_runs
        )
        no_tasks: tuple[tuple[WaitingTask, ...], frozenset[str]] = ((), everything)
        tasks, cut_off = failures.measure(
            "the tasks of Airflow", lambda: self._waiting(dags, now_ms, waiting), lambda _: no_tasks
        )
        state = AirflowState(unhealthy, runs, unknown | cut_off, tasks)
        state = self._optional("the DAGs of Airflow", lambda: self._with_dags(state, dags), state, failures)
        return self._optional("the pools of Airflow", lambda: self._with_pools(state), state, failures)

    @staticmethod
    def _optional(
        part: str, read: Callable[[], AirflowState], default: AirflowState, failures: Failures
    ) -> AirflowState:
        """Return the result of `read`.

        If Airflow refuses, record the refusal and return the default, so the other parts are read.
        """
        try:
            return read()
        except Exception as error:
            failures.caught(part, error)
            return default

    def _ended(self, dags: Collection[str], oldest_ms: int) -> tuple[tuple[LastRun, ...], frozenset[str]]:
        runs, unknown = self._last_runs(self._restless(dags), oldest_ms)
        return self._with_tasks(runs), unknown

    def _with_dags(self, state: AirflowState, dags: Collection[str]) -> AirflowState:
        """Return the state with the DAGs that Airflow does not have, and those that are paused in it."""
        is_paused = {dag["dag_id"]: bool(dag["is_paused"]) for dag in self._pages("/api/v2/dags", "dags", _OURS)}
        paused = frozenset(dag for dag in dags if is_paused.get(dag))
        missing = sorted(dag for dag in dags if dag not in is_paused)
        absent = {dag: self._absence(dag) for dag in missing[:_MOST_SINGLE_REQUESTS]}
        absent |= dict.fromkeys(missing[_MOST_SINGLE_REQUESTS:], "look for import errors in Airflow's UI")
        waits: frozenset[str] = frozenset()
        if paused:
            queued = {**_OURS, "paused": True, "dag_run_state": ["queued"]}
            waits = frozenset(dag["dag_id"] for dag in self._pages("/api/v2/dags", "dags", queued)) & paused
        return replace(state, absent=absent, paused=paused, queued_and_paused=waits)

    def _absence(self, dag: str) -> str:
        """Return what Airflow reports about a missing DAG of Waybill."""
        path = f"/api/v2/dags/{quote(dag, safe='')}"
        response = self._send("GET", path)
        if response.status_code == HTTPStatus.NOT_FOUND:
            return "its file has an import error, or the DAG processor has not read it yet: see Airflow's UI"
        found = self._document("GET", path, response)
        if found.get("is_stale"):
            return "its file did not bring it when it was last read: see the import errors in Airflow's UI"
        file = found.get("fileloc") or "another file"
        return f"another DAG has its id, from {file}: give that one another id, since Airflow keeps one of each id"

    def _with_pools(self, state: AirflowState) -> AirflowState:
        return replace(state, pools=frozenset(pool["name"] for pool in self._pages("/api/v2/pools", "pools", {})))

    def _pages(self, path: str, key: str, parameters: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield the entries of all pages of a list."""
        for page in range(_MOST_PAGES):
            answer = self._request("GET", path, params={**parameters, "limit": _PAGE, "offset": page * _PAGE})
            yield from answer[key]
            # A page may have fewer entries than requested; only an empty page is the end of the list.
            if not answer[key] or (page + 1) * _PAGE >= answer["total_entries"]:
                return
        raise self._unavailable(f"more than {_MOST_PAGES * _PAGE:,} entries to GET {path}")

    def runs_since(self, dags: Collection[str], oldest_ms: int) -> tuple[DagRunSpan, ...]:
        """Return the newest hundred runs of `dags` that were running at or after that time."""
        self._sign_in()
        body = {
            "dag_ids": sorted(dags),
            "start_date_gte": _iso(oldest_ms),
            "order_by": "-start_date",
            "page_limit": _PAGE,
        }
        answer = self._request("POST", "/api/v2/dags/~/dagRuns/list", json=body)
        return tuple(
            DagRunSpan(
                run["dag_id"],
                run["dag_run_id"],
                _epoch_ms(run["start_date"]),
                None if run["end_date"] is None else _epoch_ms(run["end_date"]),
            )
            for run in answer["dag_runs"]
            if run["start_date"] is not None
        )

    def _sign_in(self) -> None:
        if not self._endpoint.has_token:
            credentials = {"username": self._endpoint.login, "password": self._endpoint.password}
            token = self._request("POST", "/auth/token", json=credentials).get("access_token")
            if not isinstance(token, str):
                raise self._unavailable("no access_token to POST /auth/token")
            self._http.headers["Authorization"] = f"Bearer {token}"

    def _restless(self, dags: Collection[str]) -> list[str]:
        """Return the DAGs that are not paused and whose newest run is still running or did not succeed."""
        asked = {**_OURS, "paused": False, "dag_run_state": ["failed", "running", "queued"]}
        return [dag["dag_id"] for dag in self._pages("/api/v2/dags", "dags", asked) if dag["dag_id"] in dags]

    def _last_runs(self, dags: Sequence[str], oldest_ms: int) -> tuple[list[LastRun], frozenset[str]]:
        """Return the newest ended run of each DAG, and the DAGs for which it was not requested."""
        if not dags:
            return [], frozenset()
        oldest = _iso(oldest_ms)
        ended = ["success", "failed"]
        body = {
            "dag_ids": list(dags),
            "states": ended,
            "end_date_gte": oldest,
            "order_by": "-end_date",
            "page_limit": _PAGE,
        }
        answer = self._request("POST", "/api/v2/dags/~/dagRuns/list", json=body)
        newest = _newest(answer["dag_runs"])
        if answer["total_entries"] <= len(answer["dag_runs"]):  # this list is complete
            return list(newest.values()), frozenset()
        missing = [dag for dag in dags if dag not in newest]
        for dag in missing[:_MOST_SINGLE_REQUESTS]:
            parameters = {"state": ended, "end_date_gte": oldest, "order_by": "-end_date", "limit": 1}
            path = f"/api/v2/dags/{quote(dag, safe='')}/dagRuns"
            newest |= _newest(self._request("GET", path, params=parameters)["dag_runs"])
        return list(newest.values()), frozenset(missing[_MOST_SINGLE_REQUESTS:])

    def _with_tasks(self, runs: Sequence[LastRun]) -> tuple[LastRun, ...]:
        """Return the runs; failed runs hold their failed tasks."""
        failed = [run for run in runs if run.has_failed]
        if not failed:
            return tuple(runs)
        body = {
            "dag_ids": [run.dag for run in failed],
            "dag_run_ids": [run.run for run in failed],
            "state": ["failed"],
            "page_limit": _PAGE,
        }
        answer = self._request("POST", "/api/v2/dags/~/dagRuns/~/taskInstances/list", json=body)
        by_run: dict[tuple[str, str], list[FailedTask]] = {}
        for each in answer["task_instances"]:
            label = "" if each["map_index"] < 0 else each["rendered_map_index"] or str(each["map_index"])
            task = FailedTask(each["task_id"], label, each["try_number"])
            by_run.setdefault((each["dag_id"], each["dag_run_id"]), []).append(task)
        return tuple(
            LastRun(run.dag, run.run, run.has_failed, run.ended_ms, tuple(by_run.get((run.dag, run.run), ())))
            for run in runs
        )

    def _waiting(
        self, dags: Collection[str], now_ms: int, waiting: timedelta
    ) -> tuple[tuple[WaitingTask, ...], frozenset[str]]:
        """Return unfinished tasks of runs that began before that time, and the DAGs whose tasks are not all known."""
        found: list[WaitingTask] = []
        seen = 0
        for _ in range(_MOST_TASK_PAGES):
            body = {
                "dag_ids": list(dags),
                "state": _NOT_ENDED,
                "run_after_lte": _iso(now_ms - int(waiting.total_seconds() * 1000)),
                "page_limit": _PAGE,
                "page_offset": seen,
            }
            answer = self._request("POST", "/api/v2/dags/~/dagRuns/~/taskInstances/list", json=body)
            page = answer["task_instances"]
            found += [task for each in page if (task := _waiting_task(each)) is not None]
            seen += len(page)
            if not page or seen >= answer["total_entries"]:
                return tuple(found), frozenset()
        return tuple(found), frozenset(dags) - {task.dag for task in found}

    def ended_runs(self, dags: Collection[str], oldest_ms: int) -> dict[tuple[str, str], str]:
        """Return the states (`success`, `failed`) of the newest hundred runs of `dags` that ended since `oldest_ms`.

        The keys are the DAG and the run.
        """
        self._sign_in()
        body = {
            "dag_ids": sorted(dags),
            "states": ["success", "failed"],
            "end_date_gte": _iso(oldest_ms),
            "order_by": "-end_date",
            "page_limit": _PAGE,
        }
        answer = self._request("POST", "/api/v2/dags/~/dagRuns/list", json=body)
        return {(run["dag_id"], run["dag_run_id"]): run["state"] for run in answer["dag_runs"]}

    def _request(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        return self._document(method, path, self._send(method, path, **options))

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            return self._http.request(method, path, **options)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise self._unavailable(f"{type(error).__name__}: {error}") from error

    def _document(self, method: str, path: str, response: httpx.Response) -> dict[str, Any]:
        if not response.is_success:  # a redirect is a failure too: it leads to a login page, or to another address
            target = response.headers.get("location")
            text = f"to {target}" if target else " ".join(response.text.split())[:200]
            raise self._unavailable(f"{response.status_code} to {method} {path}: {text}")
        try:
            answer = response.json()
        except ValueError as error:
            media_type = response.headers.get("content-type", "without a media type")
            raise self._unavailable(f"{media_type} and no JSON to {method} {path}: {error}") from error
        if not isinstance(answer, dict):
            raise self._unavailable(f"no JSON object to {method} {path}")
        return answer

    def _unavailable(self, reason: str) -> AirflowUnavailable:
        return AirflowUnavailable(self._endpoint.url, reason, self._endpoint.remedy)


def _newest(runs: Iterable[Mapping[str, Any]]) -> dict[str, LastRun]:
    """Return the newest run of each DAG. `runs`: sorted, the newest first."""
    found: dict[str, LastRun] = {}
    for run in runs:
        if run["end_date"] is not None:
            last = LastRun(run["dag_id"], run["dag_run_id"], run["state"] == "failed", _epoch_ms(run["end_date"]))
            found.setdefault(last.dag, last)
    return found


def _waiting_task(document: Mapping[str, Any]) -> WaitingTask | None:
    is_running = document["state"] in ("running", "deferred", "restarting")
    # A task that waits for its retry has an end date: that of its last try.
    since = document["start_date"] if is_running else None
    since = since or document["end_date"] or document["queued_when"] or document["scheduled_when"]
    if since is None:
        return None
    return WaitingTask(document["dag_id"], document["dag_run_id"], document["task_id"], is_running, _epoch_ms(since))


def _epoch_ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def _iso(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat()
