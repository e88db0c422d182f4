"""The code of the DAGs' Python tasks: `begin_task` first, then what each task does and reports.

Lanes import this module every minute, and it is imported when DAGs are parsed. So what only one task needs is imported
inside its function.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from waybill.config import Config, load_config
from waybill.connections import Connection, connection_variable
from waybill.errors import HoursBlocked, IngestIncomplete

if TYPE_CHECKING:
    from waybill.ingest import IngestReport, LaneReport

__all__ = [
    "begin_task",
    "connection_environment",
    "export_connections",
    "finalize_hours",
    "report_ingest",
    "retry_from_form",
]

logger = logging.getLogger(__name__)

_VERBOSE_LIBRARIES = ("kafka", "kazoo", "botocore", "pyiceberg")
_MAX_NAMED_HOURS = 5


# --- the start of every task ------------------------------------------------------------------------------------------


def begin_task() -> Config:
    """Return the config, after exporting its connections. Every task of a DAG calls this first.

    It also silences the clients' messages about each connection that they open, so that the task's log shows Waybill's
    figures. Raises `ConfigError`, or what Airflow raises for a connection that does not exist.
    """
    for library in _VERBOSE_LIBRARIES:
        logging.getLogger(library).setLevel(logging.WARNING)
    config = load_config()
    export_connections(config)
    return config


def export_connections(config: Config) -> None:
    """Put `connection_environment` into this process's environment, where the library reads connections.

    Each Airflow task has a process of its own, so nothing else is affected.
    """
    os.environ.update(connection_environment(config))


def connection_environment(config: Config) -> dict[str, str]:
    """Return the connections that `config` names and the environment lacks, as `AIRFLOW_CONN_<ID>` variables.

    Call it inside a task: then Airflow looks in its secrets backends and in the connections of its UI. Raises what
    Airflow raises for a connection that does not exist (`AirflowNotFoundException`, which names it). A missing
    connection of a schema registry is left out: most tasks need none, and the one that needs it raises an error.
    """
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    required = {
        config.storage.connection,
        config.kafka.connection,
        config.zookeeper.connection,
        config.catalog.connection,
    }
    missing = sorted(conn_id for conn_id in required if connection_variable(conn_id) not in os.environ)
    variables = {connection_variable(conn_id): _to_environment(BaseHook.get_connection(conn_id)) for conn_id in missing}
    for conn_id in config.registries:
        if connection_variable(conn_id) not in os.environ:
            with contextlib.suppress(AirflowNotFoundException):
                variables[connection_variable(conn_id)] = _to_environment(BaseHook.get_connection(conn_id))
    return variables


def _to_environment(airflow_connection: Any) -> str:
    names = ("conn_type", "host", "port", "login", "password", "schema")
    fields = {name: value for name in names if (value := getattr(airflow_connection, name)) is not None}
    connection = Connection(conn_id=airflow_connection.conn_id, extra=airflow_connection.extra_dejson, **fields)
    return connection.to_environment()


# --- ingest__<stream> -------------------------------------------------------------------------------------------------


def report_ingest(stream: str, planned_lanes: int | None, reports: Sequence[LaneReport]) -> IngestReport:
    """Log the figures of an ingest run, and return its report. `planned_lanes` is None if planning failed.

    Raises `IngestIncomplete` if a topic-partition stopped or failed, or a lane left no report. The work of the other
    topic-partitions is done all the same.
    """
    from waybill.ingest import merge_reports

    if planned_lanes is None:
        raise IngestIncomplete(f"ingest of {stream} did not begin: see the log of the task 'plan'")
    report = merge_reports(stream, reports)
    logger.info(
        "ingest of %s: %s messages in %d new objects, %.1f MB, from %d topic-partitions in %d lanes, %.1f s, lag %s",
        stream,
        f"{report.messages:,}",
        report.objects,
        report.size_bytes / 1e6,
        len(report.partitions),
        report.lanes,
        report.seconds,
        f"{report.lag:,}",
    )
    problems = [f"{p.failure.error}: {p.failure.message}" for p in report.failures if p.failure is not None]
    if len(reports) < planned_lanes:
        problems.append(
            f"{planned_lanes - len(reports)} of {planned_lanes} lanes ended without a report: see their logs. "
            f"The next run continues at the committed offsets"
        )
    if problems:
        raise IngestIncomplete(f"ingest of {stream} is incomplete:\n" + "\n".join(f"- {text}" for text in problems))
    return report


# --- partition__<stream>: the task `finalize` -------------------------------------------------------------------------


def finalize_hours(config: Config, stream: str) -> None:
    """Mark the final hours of a stream, and log the result.

    Raises `HoursBlocked` if the files of an hour differ from the file inventory, and what `finalize` raises.
    """
    from waybill.partition.files_sink.finalize import finalize

    report = finalize(config, stream)
    for note in report.notes:
        logger.warning("%s: %s", stream, note)
    for key in report.removed:
        logger.info("%s: removed %s, the file of an abandoned plan", stream, key)
    logger.info("%s", report)
    if report.blocked:
        hours = "; ".join(
            f"{hour.period}: {len(hour.missing)} files missing, {len(hour.strays)} not listed"
            for hour in report.blocked[:_MAX_NAMED_HOURS]
        )
        raise HoursBlocked(
            f"{stream}: the files of {len(report.blocked):,} hours differ from the file inventory ({hours}); these "
            f"hours cannot become final. The details: waybill finalize {stream} --dry-run"
        )


# --- quarantine_retry__<stream> ---------------------------------------------------------------------------------------


def retry_from_form(config: Config, stream: str, form: Mapping[str, Any]) -> dict[str, Any]:
    """Retry the messages that the DAG's form selects, log the report, and return it as a JSON object.

    Raises what `retry_quarantine` raises.
    """
    from waybill.quarantine.retry import retry_quarantine
    from waybill.quarantine.row_filter import RowFilter

    row_filter = RowFilter.parse(
        reasons=form["reasons"],
        targets=form["topic_partitions"],
        first_offset=form["first_offset"],
        last_offset=form["last_offset"],
    )
    report = retry_quarantine(config, stream, row_filter, dry_run=form["dry_run"])
    for line in report.lines():
        logger.info("%s", line)
    return report.document()
