"""What the watch finds about Airflow, asked of a server that answers as Airflow's REST API does.

tests/e2e/test_through_airflow.py asks the real one.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from waybill.base.errors import AirflowUnavailable, ConfigError, ConnectionMissing
from waybill.config.connections import Connection, find_connection
from waybill.config.models import Config
from waybill.config.models.groups import Group
from waybill.config.models.promises import PromiseSeverity
from waybill.watch.incidents.failures import Failures
from waybill.watch.incidents.finding import Finding, Verdict
from waybill.watch.promises.airflow_figures import airflow_finding, ask_airflow, task_findings, without_effects
from waybill.watch.promises.status import DecisionStatus
from waybill.watch.promises.status_runs import find_action_runs, known_action_runs

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)
MINUTE = 60_000
STREAM = {
    "parser": {"name": "json", "event_time": {"field": "at", "format": "epoch_ms"}},
    "maintenance": {},
}


def config_of(**airflow: Any) -> Config:
    return Config.model_validate(
        {
            "version": 1,
            "storage": {"bucket": "archive"},
            "alerts": {"airflow_url": "https://airflow.example.com"},
            "airflow": {"connection": "waybill_airflow", **airflow},
            "streams": {
                "flights": {**STREAM, "topics": ["flights"], "table": "a.flights"},
                "fares": {**STREAM, "topics": ["fares"], "table": "a.fares"},
                "orders": {**STREAM, "topics": ["orders"], "table": "a.orders", "partition": {"group": "own"}},
            },
        }
    )


CONFIG = config_of()


def ago(minutes: float) -> str:
    return datetime.fromtimestamp(NOW.timestamp() - minutes * 60, UTC).isoformat()


DAGS = (
    *("ingest", "partition", "partition__orders", "maintenance", "backfill", "ledger", "watch"),
    *("backfill_undo", "restore", "rehearse", "airflow_cleanup"),
)


@dataclass
class ScriptedAirflow:
    """DAG runs and task instances, by the fields of Airflow's answers, and the requests."""

    url: str = ""
    health: dict[str, Any] = field(
        default_factory=lambda: {
            "metadatabase": {"status": "healthy"},
            "scheduler": {"status": "healthy", "latest_scheduler_heartbeat": ago(0)},
            "dag_processor": {"status": "healthy"},
            "triggerer": {"status": None},
        }
    )
    runs: list[dict[str, Any]] = field(default_factory=list)
    """Oldest first."""
    tasks: list[dict[str, Any]] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    token: str = "token-1"
    status: int = 200
    dags: dict[str, dict[str, Any]] = field(default_factory=lambda: {dag: {} for dag in DAGS})
    """What differs from a DAG of Waybill that is not paused, by id."""
    pools: list[str] = field(default_factory=lambda: ["default_pool"])
    gone: set[str] = field(default_factory=set)
    """DAGs that Airflow does not have."""
    answers: dict[str, tuple[int, str, bytes]] = field(default_factory=dict)
    """Status, media type and body in place of the answer to a path."""

    def run(self, dag: str, state: str, ended: float | None = 1.0) -> str:
        name = f"run-{len(self.runs)}"
        end = None if ended is None else ago(ended)
        self.runs.append({"dag_id": dag, "dag_run_id": name, "state": state, "end_date": end})
        return name

    def task(self, dag: str, run: str, task: str, state: str, **fields: Any) -> None:
        known = {
            "dag_id": dag,
            "dag_run_id": run,
            "task_id": task,
            "state": state,
            "map_index": -1,
            "rendered_map_index": None,
            "try_number": 3,
            "start_date": None,
            "end_date": None,
            "queued_when": None,
            "scheduled_when": None,
        }
        self.tasks.append({**known, **fields})

    def answer(self, path: str, query: dict[str, list[str]], body: dict[str, Any]) -> dict[str, Any]:
        if path == "/api/v2/pools":
            return self.page("pools", [{"name": name} for name in self.pools], query)
        if path == "/api/v2/dags":
            return self.page("dags", self.some_dags(query), query)
        if path.startswith("/api/v2/dags/") and path.count("/") == 4:
            return self.dag(path.rpartition("/")[2])
        return self.answer_about_runs(path, query, body)

    def answer_about_runs(self, path: str, query: dict[str, list[str]], body: dict[str, Any]) -> dict[str, Any]:
        if path == "/api/v2/monitor/health":
            return self.health
        if path == "/auth/token":
            return {"access_token": self.token}
        if path == "/api/v2/dags/~/dagRuns/list":
            return self.some_runs(set(body["dag_ids"]), set(body["states"]), body["end_date_gte"], body["page_limit"])
        if path.endswith("/dagRuns"):
            dag = path.split("/")[-2]
            return self.some_runs({dag}, set(query["state"]), query["end_date_gte"][0], int(query["limit"][0]))
        assert path == "/api/v2/dags/~/dagRuns/~/taskInstances/list", path
        found = [task for task in self.tasks if task["state"] in body["state"] and task["dag_id"] in body["dag_ids"]]
        if "dag_run_ids" in body:
            found = [task for task in found if task["dag_run_id"] in body["dag_run_ids"]]
        first = body.get("page_offset", 0)
        return {"task_instances": found[first : first + body["page_limit"]], "total_entries": len(found)}

    def some_dags(self, query: dict[str, list[str]]) -> list[dict[str, Any]]:
        dags = [self.dag(dag) for dag in {**self.dags, **{run["dag_id"]: {} for run in self.runs}}]
        found = [dag for dag in dags if query["tags"][0] in [tag["name"] for tag in dag["tags"]]]
        if "paused" in query:
            found = [dag for dag in found if dag["is_paused"] is (query["paused"][0] == "true")]
        if "dag_run_state" in query:
            newest = {run["dag_id"]: run["state"] for run in self.runs}
            found = [dag for dag in found if newest.get(dag["dag_id"]) in query["dag_run_state"]]
        return found

    def dag(self, dag: str) -> dict[str, Any]:
        ours = {"dag_id": dag, "is_paused": False, "is_stale": False, "fileloc": "/dags/x.py"}
        return {**ours, "tags": [{"name": "waybill"}], **self.dags.get(dag, {})}

    @staticmethod
    def page(key: str, found: list[dict[str, Any]], query: dict[str, list[str]]) -> dict[str, Any]:
        offset, limit = int(query["offset"][0]), int(query["limit"][0])
        return {key: found[offset : offset + limit], "total_entries": len(found)}

    def some_runs(self, dags: set[str], states: set[str], oldest: str, limit: int) -> dict[str, Any]:
        ended = [run for run in self.runs if run["dag_id"] in dags and run["state"] in states]
        found = [run for run in ended if datetime.fromisoformat(run["end_date"]) >= datetime.fromisoformat(oldest)]
        found.sort(key=lambda run: run["end_date"], reverse=True)
        return {"dag_runs": found[:limit], "total_entries": len(found)}


@pytest.fixture
def airflow() -> Iterator[ScriptedAirflow]:
    scripted = ScriptedAirflow()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.do_POST()

        def do_POST(self) -> None:
            parts = urlsplit(self.path)
            scripted.requests.append(f"{self.command} {parts.path}")
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else {}
            is_open = parts.path in ("/api/v2/monitor/health", "/auth/token")
            status = scripted.status
            if not is_open and self.headers.get("Authorization") != f"Bearer {scripted.token}":
                status = 401
            media_type = "application/json"
            if status == 200 and parts.path in scripted.answers:
                status, media_type, content = scripted.answers[parts.path]
            elif status == 200 and parts.path.count("/") == 4 and parts.path.rpartition("/")[2] in scripted.gone:
                status, content = 404, b'{"detail":"no such DAG"}'
            else:
                answer = {"detail": "no"} if status != 200 else None
                answer = answer or scripted.answer(parts.path, parse_qs(parts.query), body)
                content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", media_type)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Leave the test's output alone."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    scripted.url = f"http://127.0.0.1:{server.server_port}"
    yield scripted
    server.shutdown()
    thread.join()
    server.server_close()


def find(airflow: ScriptedAirflow, **fields: Any) -> Any:
    known = {"conn_type": "http", "host": airflow.url, "login": "admin", "password": "s3cret"}
    return lambda conn_id: Connection(conn_id=conn_id, **{**known, **fields})


def findings(airflow: ScriptedAirflow, *others: Finding, config: Config = CONFIG) -> dict[str, Finding]:
    """Return the findings about tasks, by DAG."""
    state = ask_airflow(config, find(airflow), NOW_MS, Failures())
    assert state is not None
    return {each.subject: each for each in task_findings(config, state, others, NOW_MS)}


def broken(found: dict[str, Finding]) -> list[str]:
    return [dag for dag, each in found.items() if each.verdict is Verdict.BROKEN]


def test_sound_airflow_takes_six_requests_and_each_dag_is_a_kept_promise(airflow: ScriptedAirflow) -> None:
    airflow.run("partition", "success")
    found = findings(airflow)
    assert broken(found) == []
    assert found.keys() == set(DAGS)
    assert {dag: each.stream for dag, each in found.items() if each.stream} == {"partition__orders": "orders"}
    assert len(airflow.requests) == 6


def test_last_run_that_failed_names_its_tasks_and_links_to_the_run(airflow: ScriptedAirflow) -> None:
    airflow.run("partition", "success", 90)
    run = airflow.run("partition", "failed", 30)
    airflow.task("partition", run, "partition", "failed")
    airflow.task("partition", "another", "results", "failed")
    found = findings(airflow)
    assert broken(found) == ["partition"]
    finding = found["partition"]
    assert (finding.figure, finding.value, finding.since_ms) == ("1 task failed", 1, NOW_MS - 30 * MINUTE)
    assert finding.severity is PromiseSeverity.WARNING
    assert "after 3 attempts: partition" in finding.detail
    assert finding.link == f"https://airflow.example.com/dags/partition/runs/{run}"


def test_a_run_in_progress_changes_nothing_and_a_later_success_ends_it(airflow: ScriptedAirflow) -> None:
    airflow.run("partition", "failed", 30)
    airflow.run("partition", "running", None)
    assert broken(findings(airflow)) == ["partition"]
    assert findings(airflow)["partition"].figure == "the run failed"
    airflow.runs[-1] |= {"state": "success", "end_date": ago(1)}
    assert broken(findings(airflow)) == []
    airflow.run("partition", "running", None)
    assert broken(findings(airflow)) == []


def test_a_task_that_is_retried_is_no_failure_until_its_run_has_failed(airflow: ScriptedAirflow) -> None:
    run = airflow.run("partition", "running", None)
    airflow.task("partition", run, "partition", "up_for_retry", end_date=ago(2))
    assert broken(findings(airflow)) == []


def test_failed_run_of_long_ago_counts_no_more(airflow: ScriptedAirflow) -> None:
    airflow.run("backfill", "failed", 47 * 60)
    assert broken(findings(airflow)) == ["backfill"]
    airflow.runs[0]["end_date"] = ago(49 * 60)
    assert broken(findings(airflow)) == []


def test_last_runs_behind_a_hundred_of_another_dag_are_found(airflow: ScriptedAirflow) -> None:
    airflow.run("maintenance", "failed", 600)
    for number in range(150):
        airflow.run("ingest", "success", 200 - number)
    airflow.run("ingest", "running", None)
    assert broken(findings(airflow)) == ["maintenance"]


def test_task_that_waits_or_runs_for_too_long_is_found(airflow: ScriptedAirflow) -> None:
    airflow.task("ingest", "r", "lane", "queued", queued_when=ago(45))
    airflow.task("partition", "r", "partition", "running", start_date=ago(45), queued_when=ago(46))
    airflow.task("elsewhere", "r", "x", "queued", queued_when=ago(600))
    found = findings(airflow)
    assert broken(found) == ["ingest"]
    assert found["ingest"].figure == "one waits for 45 min"
    assert found["ingest"].since_ms == NOW_MS - 15 * MINUTE
    found = findings(airflow, config=config_of(tasks={"limit": "1h", "running_limit": "30m"}))
    assert broken(found) == ["partition"]
    assert found["partition"].figure == "one runs for 45 min"


@pytest.mark.parametrize(("task", "is_reported"), [("report", False), ("stream", False), ("partition", True)])
def test_run_that_reports_what_a_broken_promise_reports_is_not_reported_again(
    airflow: ScriptedAirflow, task: str, is_reported: bool
) -> None:
    dag = "ingest" if task == "report" else "partition"
    run = airflow.run(dag, "failed")
    is_mapped = task == "stream"
    airflow.task(
        dag, run, task, "failed", map_index=0 if is_mapped else -1, rendered_map_index="fares" if is_mapped else None
    )
    held = Finding("fares", "held_publication", Verdict.BROKEN, PromiseSeverity.CRITICAL)
    assert broken(findings(airflow)) == [dag]
    assert broken(findings(airflow, held)) == ([dag] if is_reported else [])
    of_another = Finding("orders", "held_publication", Verdict.BROKEN, PromiseSeverity.CRITICAL)
    assert (broken(findings(airflow, of_another)) == [dag]) or task == "report"


def test_components_without_a_heartbeat_are_named_and_an_absent_one_is_not(airflow: ScriptedAirflow) -> None:
    state = ask_airflow(CONFIG, find(airflow), NOW_MS, Failures())
    assert state is not None
    assert airflow_finding(state).verdict is Verdict.KEPT
    airflow.health["scheduler"]["status"] = airflow.health["dag_processor"]["status"] = "unhealthy"
    state = ask_airflow(CONFIG, find(airflow), NOW_MS, Failures())
    assert state is not None
    finding = airflow_finding(state)
    assert (finding.verdict, finding.subject) == (Verdict.BROKEN, "Airflow")
    assert finding.figure == "no heartbeat of its scheduler and dag processor"


def test_database_that_is_away_leaves_the_tasks_unknown(airflow: ScriptedAirflow) -> None:
    airflow.health["metadatabase"]["status"] = "unhealthy"
    assert {each.verdict for each in findings(airflow).values()} == {Verdict.UNKNOWN}


def test_airflow_that_refuses_or_is_away_is_unavailable(airflow: ScriptedAirflow) -> None:
    airflow.status = 500
    with pytest.raises(AirflowUnavailable, match=r"500 to GET /api/v2/monitor/health.*AIRFLOW_CONN_WAYBILL_AIRFLOW"):
        ask_airflow(CONFIG, find(airflow), NOW_MS, Failures())
    with pytest.raises(AirflowUnavailable, match="ConnectError"):
        ask_airflow(CONFIG, find(airflow, host="http://127.0.0.1:1"), NOW_MS, Failures())


def test_a_token_in_the_connection_is_used_as_it_is(airflow: ScriptedAirflow) -> None:
    extra = {"Authorization": f"Bearer {airflow.token}"}
    assert ask_airflow(CONFIG, find(airflow, login=None, password=None, extra=extra), NOW_MS, Failures()) is not None
    assert "POST /auth/token" not in airflow.requests


def test_connection_without_credentials_or_without_a_definition_is_refused(airflow: ScriptedAirflow) -> None:
    with pytest.raises(ConfigError, match="needs a login and a password"):
        ask_airflow(CONFIG, find(airflow, login=None, password=None), NOW_MS, Failures())
    with pytest.raises(ConnectionMissing, match="AIRFLOW_CONN_WAYBILL_AIRFLOW"):
        ask_airflow(CONFIG, lambda conn_id: find_connection(conn_id, {}), NOW_MS, Failures())
    assert ask_airflow(config_of(connection=None), find(airflow), NOW_MS, Failures()) is None


def test_promises_that_are_broken_since_airflow_stands_still_are_one_incident() -> None:
    lag, runway, kept = (
        Finding("flights", promise, verdict, PromiseSeverity.CRITICAL)
        for promise, verdict in (
            ("archive_lag", Verdict.BROKEN),
            ("retention_runway", Verdict.BROKEN),
            ("table_lag", Verdict.KEPT),
        )
    )
    assert [each.verdict for each in without_effects([lag, runway, kept])] == [
        Verdict.UNKNOWN,
        Verdict.BROKEN,
        Verdict.KEPT,
    ]


def ordered(run: str, dag: str = "backfill", state: str = "") -> DecisionStatus:
    """Return an action of a page that ordered a DAG run."""
    texts = ("ada", "promote", "flights", {}, "why", "ordered", "waybill backfill promote")
    return DecisionStatus(NOW_MS - 60_000, *texts, "place", dag, run, state)


def test_an_ordered_run_is_asked_for_until_it_has_ended(airflow: ScriptedAirflow) -> None:
    failed, going, done = (
        airflow.run("backfill", "failed", 0.5),
        airflow.run("backfill", "running", None),
        airflow.run("quality_decision", "success", 0.5),
    )
    decisions = [ordered(failed), ordered(going), ordered(done, "quality_decision"), ordered("", "")]
    found = find_action_runs(CONFIG, find(airflow), decisions)
    assert [each.run_state for each in found] == ["failed", "", "success", ""]
    assert len(airflow.requests) == 2
    again = known_action_runs(decisions, found)
    assert again == found, "what has ended is known from the document before"
    assert find_action_runs(CONFIG, find(airflow), [again[0], again[2], again[3]]) == (again[0], again[2], again[3])
    assert len(airflow.requests) == 2, "nothing is open"


def test_paused_absent_and_foreign_dags_and_a_missing_pool_are_named(airflow: ScriptedAirflow) -> None:
    """N7: runs stayed queued, or ours vanished without an import error, and no promise was broken."""
    airflow.dags["partition"] = {"is_paused": True}
    airflow.dags["backfill"] = {"tags": [{"name": "mine"}], "fileloc": "/dags/users/backfill.py"}
    airflow.dags["maintenance"] = {"tags": [], "is_stale": True}
    del airflow.dags["ledger"]
    airflow.gone.add("ledger")
    airflow.dags["restore"] = {"is_paused": True}  # nobody waits for it
    airflow.dags["rehearse"] = {"is_paused": True}
    airflow.run("rehearse", "queued", None)
    config = config_of()
    config = config.model_copy(
        update={"groups": {"default": Group.model_validate({"ingest": {"pool": "lanes", "lanes": 2}})}}
    )
    found = findings(airflow, config=config)
    assert {dag: found[dag].figure for dag in broken(found)} == {
        "partition": "DAG partition is paused in Airflow",
        "backfill": "DAG backfill is not in Airflow",
        "maintenance": "DAG maintenance is not in Airflow",
        "ledger": "DAG ledger is not in Airflow",
        "rehearse": "DAG rehearse is paused in Airflow",
        "ingest": "pool lanes does not exist",
    }
    assert "another DAG has its id, from /dags/users/backfill.py" in found["backfill"].detail
    assert "import error" in found["ledger"].detail
    assert "import error" in found["maintenance"].detail
    assert "Airflow has: default_pool" in found["ingest"].detail
    airflow.pools.append("lanes")
    assert "ingest" not in broken(findings(airflow, config=config))


@pytest.mark.parametrize(
    ("path", "answer", "what"),
    [
        ("/api/v2/pools", (403, "application/json", b'{"detail":"Forbidden"}'), "403 to GET /api/v2/pools"),
        ("/api/v2/pools", (404, "text/html", b"<html>"), "404 to GET /api/v2/pools"),
        ("/api/v2/pools", (200, "text/html", b"<html>sign in</html>"), "text/html and no JSON"),
        ("/api/v2/pools", (200, "application/json", b'{"pools":[{"slots":1}],"total_entries":1}'), "KeyError"),
        ("/api/v2/pools", (200, "application/json", b'{"pools":null,"total_entries":1}'), "TypeError"),
        ("/api/v2/dags/~/dagRuns/~/taskInstances/list", (200, "application/json", b"{}"), "KeyError"),
    ],
)
def test_a_part_of_airflow_that_cannot_be_read_hides_no_other(
    airflow: ScriptedAirflow, path: str, answer: tuple[int, str, bytes], what: str
) -> None:
    airflow.answers[path] = answer
    airflow.dags["partition"] = {"is_paused": True}
    failures = Failures()
    state = ask_airflow(CONFIG, find(airflow), NOW_MS, failures)
    assert state is not None
    assert state.pools == (None if path.endswith("pools") else {"default_pool"})
    assert what in " ".join(failures.texts)
    assert len(failures.texts) == 1
    found = {each.subject: each for each in task_findings(CONFIG, state, (), NOW_MS)}
    assert found["partition"].verdict is Verdict.BROKEN
    kept = Verdict.KEPT if path.endswith("pools") else Verdict.UNKNOWN
    assert found["ingest"].verdict is kept


@pytest.mark.parametrize(
    ("path", "answer", "what"),
    [
        ("/api/v2/monitor/health", (200, "text/html", b"<html>"), "text/html and no JSON"),
        ("/api/v2/monitor/health", (200, "application/json", b"[]"), "no JSON object"),
        ("/auth/token", (200, "application/json", b"{}"), "no access_token"),
        ("/auth/token", (401, "application/json", b"{}"), "401 to POST /auth/token"),
    ],
)
def test_an_airflow_that_answers_otherwise_does_not_answer(
    airflow: ScriptedAirflow, path: str, answer: tuple[int, str, bytes], what: str
) -> None:
    airflow.answers[path] = answer
    with pytest.raises(AirflowUnavailable, match=what):
        ask_airflow(CONFIG, find(airflow), NOW_MS, Failures())


def test_all_pages_of_tasks_that_wait_are_read(airflow: ScriptedAirflow) -> None:
    for number in range(250):
        airflow.task("ingest" if number < 249 else "partition", f"run-{number}", "lane", "queued", queued_when=ago(90))
    assert set(broken(findings(airflow))) == {"ingest", "partition"}
