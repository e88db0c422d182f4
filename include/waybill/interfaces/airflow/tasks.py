"""The code of the DAGs' Python tasks: first `begin_task`, then the work and the report of each task.

Lanes import this module every minute, and it is imported when DAGs are parsed. So modules that only one task needs are
imported inside its function.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from waybill.base.errors import ConfigError, HoursBlocked, IngestIncomplete, WatchIncomplete
from waybill.config.connections import Connection, connection_variable
from waybill.config.models import Config, load_valid_streams

logger = logging.getLogger(__name__)

_VERBOSE_LIBRARIES = ("kafka", "kazoo", "botocore", "pyiceberg", "httpx")


# --- the start of every task ------------------------------------------------------------------------------------------


def begin_task(config: Config | None = None) -> Config:
    """Return the config, after exporting its connections. Every task of a DAG calls this first.

    `config` None: read the config file.

    It also suppresses the clients' messages about each connection that they open, so that the task's log shows
    Waybill's figures. Raises `ConfigError`, or what Airflow raises for a connection that does not exist.
    """
    for library in _VERBOSE_LIBRARIES:
        logging.getLogger(library).setLevel(logging.WARNING)
    config = config or load_valid_streams()
    export_connections(config)
    return config


def begin_replay_task() -> Config:
    """Call `begin_task`, and export the connections of `config.replay` too."""
    config = begin_task()
    export_replay_connections(config)
    return config


def export_replay_connections(config: Config) -> None:
    """Add the missing connections of `config.replay` to the environment.

    A missing connection is left out: the request that needs it names it, and the others are served.
    """
    if config.replay is not None:
        os.environ.update(_optional_connections(config.replay.connections))


def export_connections(config: Config) -> None:
    """Add `connection_environment` to this process's environment, from which the library reads connections.

    Each Airflow task is a separate process, so no other code is affected.
    """
    os.environ.update(connection_environment(config))


def connection_environment(config: Config) -> dict[str, str]:
    """Return the connections that `config` names and the environment lacks, as `AIRFLOW_CONN_<ID>` variables.

    Call it inside a task: then Airflow looks in its secrets backends and in the connections of its UI. Raises what
    Airflow raises for a connection that does not exist (`AirflowNotFoundException`, which names it). A missing
    connection of a schema registry or of Kinesis is left out: most tasks do not need it, and a task that needs it
    raises an error.
    """
    from airflow.sdk import BaseHook

    required = {
        config.storage.connection,
        config.zookeeper.connection,
        config.catalog.connection,
        *((config.kafka.connection,) if config.reads_kafka else ()),
    }
    missing = sorted(conn_id for conn_id in required if connection_variable(conn_id) not in os.environ)
    variables = {connection_variable(conn_id): to_environment(BaseHook.get_connection(conn_id)) for conn_id in missing}
    return variables | _optional_connections((*config.registries, *config.kinesis_connections))


def _optional_connections(conn_ids: Iterable[str]) -> dict[str, str]:
    """Return the connections that are missing in the environment and exist in Airflow."""
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    variables: dict[str, str] = {}
    for conn_id in conn_ids:
        if connection_variable(conn_id) not in os.environ:
            with contextlib.suppress(AirflowNotFoundException):
                variables[connection_variable(conn_id)] = to_environment(BaseHook.get_connection(conn_id))
    return variables


def to_environment(airflow_connection: Any) -> str:
    """Return a connection of Airflow as the text of its environment variable."""
    names = ("conn_type", "host", "port", "login", "password", "schema")
    fields = {name: value for name in names if (value := getattr(airflow_connection, name)) is not None}
    connection = Connection(conn_id=airflow_connection.conn_id, extra=airflow_connection.extra_dejson, **fields)
    return connection.to_environment()


# --- the ledger -------------------------------------------------------------------------------------------------------


def record_ledgers() -> dict[str, Any]:
    """Record the ledgers of all streams for the watch. Return how many were read, and how many do not balance.

    For an imbalance, the watch opens an incident; the task does not fail. Raises the first error of a stream whose
    ledger could not be read, after all others were.
    """
    from waybill.base.errors import KafkaUnavailable, WaybillError, expected
    from waybill.services.coordination import Coordinator
    from waybill.tables.staging.services import services_of
    from waybill.watch.ledger import record_ledger

    def without_kafka() -> Mapping[Any, int]:
        raise KafkaUnavailable("a recorded ledger needs no figure of Kafka's log")

    config = begin_task()
    found: dict[str, int] = {}
    errors: list[WaybillError] = []
    with services_of(config) as services:
        for name in config.streams:
            try:
                with Coordinator.of(config, name) as coordinator:
                    ledger = record_ledger(config, name, services, coordinator, without_kafka)
            except Exception as error:
                failure = expected(f"the ledger of stream {name}", error)
                if failure is not error:
                    logger.exception("the stack trace of the ledger of stream %s", name)
                logger.error("%s: the ledger cannot be read: %s", name, failure)
                errors.append(failure)
                continue
            found[name] = len(ledger.imbalances)
            for imbalance in ledger.imbalances:
                logger.warning("%s does not balance: %s", name, imbalance)
    if errors:
        raise errors[0]
    return {"streams": len(found), "not_balanced": sum(bool(number) for number in found.values())}


# --- the watch --------------------------------------------------------------------------------------------------------


def watch_promises() -> dict[str, Any]:
    """Run one watch, log the broken promises, and return the number of promises and of broken ones.

    A broken promise opens an incident, and the task does not fail. The task fails only if the watch itself cannot work,
    or if an unexpected exception ended a part of it: then it raises `WatchIncomplete` at the end.
    """
    from waybill.config.models.last_valid import load_for_watch
    from waybill.watch.promises.watch_run import run_watch

    loaded = load_for_watch()
    begin_task(loaded.config)
    os.environ.update(_alert_connections(loaded.config))
    report = run_watch(loaded)
    for finding in report.broken:
        logger.warning(
            "%s: %s %s (%s) %s",
            finding.stream or finding.subject,
            finding.promise,
            finding.figure,
            finding.limit,
            finding.detail,
        )
    for error in report.failed:
        logger.warning("a message was not sent, and is tried again: %s", error)
    if report.unexpected:
        raise WatchIncomplete("; ".join(report.unexpected))
    return {"promises": len(report.findings), "broken": len(report.broken), "sent": report.sent}


def _alert_connections(config: Config) -> dict[str, str]:
    """Return the connections of Airflow and of the alert channels that the environment lacks.

    A missing connection of a channel is left out: the watch reports the broken channel on the other channels. If the
    connection of Airflow itself does not exist, raises Airflow's error.
    """
    from airflow.sdk import BaseHook

    variables: dict[str, str] = {}
    airflow = config.airflow.connection
    if airflow is not None and connection_variable(airflow) not in os.environ:
        variables[connection_variable(airflow)] = to_environment(BaseHook.get_connection(airflow))
    return variables | _optional_connections(config.alerts.connections)


# --- ingest -----------------------------------------------------------------------------------------------------------


def plan_ingest(
    group: str | None, streams: Sequence[str], selected: Sequence[str]
) -> tuple[list[dict[str, Any]], dict[str, Any]] | None:
    """Plan a run of a group (None: of a stream's own DAG).

    Return its lanes, and the plan without the lanes' topic-partitions.

    Both are JSON values. Airflow stores them in its database, so the plan for the report is short.

    Return None if there is nothing to archive, and no new problem: then the run ends with this task. `selected` are the
    streams in the form; if it names none, all `streams` are planned.

    Raises `ConfigError` for an unknown stream, and what `plan_run` raises.
    """
    from waybill.archive.ingest.lane_plan import plan_run

    unknown = sorted(set(selected) - set(streams))
    if unknown:
        raise ConfigError(f"no stream {unknown[0]!r} in this DAG; its streams: {', '.join(sorted(streams))}")
    config = begin_task()
    # A run triggered by hand checks at once whether stopped topic-partitions can continue.
    plan = plan_run(config, group, selected or streams, with_stopped=bool(selected) or group is None)
    if not plan.lanes and not plan.has_news:
        logger.info("nothing to archive")
        return None
    document = plan.model_dump(mode="json")
    planning = time.process_time() / max(1, len(plan.lanes))
    lanes = [{**lane, "planning_cpu_seconds": planning} for lane in document["lanes"]]
    return lanes, {**document, "lanes": [{**lane, "shares": []} for lane in lanes]}


def run_planned_lane(lane: Mapping[str, Any]) -> dict[str, Any]:
    """Run a lane of a plan, and return its summary, both as JSON objects. Raises what `run_lane` raises."""
    from waybill.archive.ingest.lane import run_lane
    from waybill.archive.ingest.lane_plan import Lane
    from waybill.interfaces.airflow.counters import count_lane

    report = run_lane(begin_task(), Lane.model_validate(lane))
    count_lane(report)
    return report.summary().model_dump(mode="json")


def report_ingest(group: str | None, plan: Mapping[str, Any] | None, lanes: Sequence[Mapping[str, Any]]) -> None:
    """Log the figures of an ingest run and the problems of its streams. `plan` is None if planning failed.

    Raises `IngestIncomplete` if a lane left no summary, or if a problem is new. The other streams are still archived. A
    problem that an earlier run of the group reported is only logged.
    """
    from waybill.archive.ingest.groups import report_run
    from waybill.archive.ingest.lane_plan import IngestPlan
    from waybill.archive.ingest.lane_report import LaneSummary

    if plan is None:
        raise IngestIncomplete("ingest did not begin: see the log of the task 'plan'")
    summaries = [LaneSummary.model_validate(lane) for lane in lanes]
    report_run(begin_task(), group, IngestPlan.model_validate(plan), summaries)


# --- partition__<stream>: the task `finalize` -------------------------------------------------------------------------


def finalize_hours(config: Config, stream: str) -> None:
    """Mark the final hours of a stream, and log the result.

    Raises `HoursBlocked` if the files of an hour differ from the file inventory, and what `finalize` raises.
    """
    from waybill.tables.partition.files_sink.finalize import finalize, hours_blocked

    report = finalize(config, stream)
    for note in report.notes:
        logger.warning("%s: %s", stream, note)
    for key in report.removed:
        logger.info("%s: removed %s, the file of an abandoned plan", stream, key)
    logger.info("%s", report)
    if report.blocked:
        raise HoursBlocked(hours_blocked(report))


# --- quarantine_retry -------------------------------------------------------------------------------------------------


def retry_from_form(config: Config, form: Mapping[str, Any], user: str | None) -> dict[str, Any]:
    """Retry the messages that the DAG's form selects, log the report, and return it as a JSON object.

    `user`: who triggered the DAG run. Raises what `retry_quarantine` raises.
    """
    from waybill.base.decision import Decision
    from waybill.interfaces.airflow.decisions import log_decision
    from waybill.interfaces.operations.catalogue import RETRY
    from waybill.tables.audit import DecisionKind, HoldDecision
    from waybill.tables.quarantine.retry import retry_quarantine
    from waybill.tables.quarantine.row_filter import RowFilter

    row_filter = RowFilter.parse(
        reasons=form["reasons"] or (),
        targets=form["topic_partitions"] or (),
        first_offset=form["first_offset"],
        last_offset=form["last_offset"],
    )
    given = form.get("accept_failed_checks")
    # The form of `backfill` takes a boolean under this name, so this form accepts a boolean too.
    decision = Decision.of_run(user, "accepted in Airflow without a reason" if given is True else given or "")
    released = HoldDecision(DecisionKind.RELEASED, decision.by, decision.reason, datetime.now(UTC))
    accepted = released if decision.reason else None
    if not form["dry_run"]:
        log_decision(config, RETRY, decision, form)
    report = retry_quarantine(config, form["stream"], row_filter, dry_run=form["dry_run"], accepted=accepted)
    for line in report.lines():
        logger.info("%s", line)
    return report.document()


# --- holds ------------------------------------------------------------------------------------------------------------


def decide_from_form(config: Config, form: Mapping[str, Any], user: str | None) -> dict[str, Any]:
    """Release or reject the held run of a stream, as the DAG's form says, and return it as a JSON object.

    `user`: who triggered the DAG run. Raises what `decide_hold` raises.
    """
    from waybill.base.decision import Decision
    from waybill.interfaces.airflow.decisions import log_decision
    from waybill.interfaces.operations.catalogue import OPERATIONS
    from waybill.interfaces.operations.declaration import OperationName
    from waybill.tables.audit import DecisionKind
    from waybill.tables.partition.holds import decide_hold

    decision = Decision.of_run(user, form["reason"])
    log_decision(config, OPERATIONS[OperationName(form["decision"])], decision, form)
    kind = DecisionKind.of(form["decision"])
    hold = decide_hold(config, form["stream"], kind, by=decision.by, reason=decision.reason, plan=form["plan"])
    logger.info("%s: %s", form["stream"], hold.decision)
    return hold.document()
