"""What a task does first: the config, Airflow's connections as the environment that the library reads, a quiet log.

The end of an ingest run: what was archived, in figures, and whether anything did not go well.

The task `finalize`: what the finalizer found, in the log, and a failure if an hour cannot become final.

What a DAG's form asks of a stream's quarantine.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from waybill.config import Config, load_config
from waybill.connections import Connection, connection_variable
from waybill.errors import HoursBlocked, IngestIncomplete
from waybill.ingest import IngestReport, LaneReport, merge_reports
from waybill.partition.files_sink.finalize import finalize
from waybill.quarantine.retry import retry_quarantine
from waybill.quarantine.row_filter import RowFilter

__all__ = [
    "begin_task",
    "connection_environment",
    "export_connections",
    "finalize_hours",
    "report_run",
    "retry_as_asked",
]

_CHATTY = ("kafka", "kazoo", "botocore", "pyiceberg")


def begin_task() -> Config:
    """The config, ready to use: every task of a DAG calls this first.

    The clients' accounts of each connection they open are kept out of the task's log: who is paged looks for figures
    there. Raises `ConfigError`, or what Airflow raises for a connection that it does not know.
    """
    for library in _CHATTY:
        logging.getLogger(library).setLevel(logging.WARNING)
    config = load_config()
    export_connections(config)
    return config


def connection_environment(config: Config) -> dict[str, str]:
    """The connections that `config` names and the environment lacks, as `AIRFLOW_CONN_<ID>` variables.

    Call it inside a task: Airflow then asks its secrets backends and the connections of its UI. Raises what Airflow
    raises for a connection that it does not know (`AirflowNotFoundException`, which names it). A schema registry that
    it does not know is left out: most tasks need none, and the one that does says so.
    """
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    wanted = {
        config.storage.connection,
        config.kafka.connection,
        config.zookeeper.connection,
        config.catalog.connection,
    }
    missing = sorted(conn_id for conn_id in wanted if connection_variable(conn_id) not in os.environ)
    found = {connection_variable(conn_id): _to_environment(BaseHook.get_connection(conn_id)) for conn_id in missing}
    for conn_id in config.registries:
        if connection_variable(conn_id) not in os.environ:
            with contextlib.suppress(AirflowNotFoundException):
                found[connection_variable(conn_id)] = _to_environment(BaseHook.get_connection(conn_id))
    return found


def export_connections(config: Config) -> None:
    """Put `connection_environment` into this process's environment: a task has a process of its own."""
    os.environ.update(connection_environment(config))


def _to_environment(found: Any) -> str:
    fields = {name: getattr(found, name) for name in ("conn_type", "host", "port", "login", "password", "schema")}
    given = {name: value for name, value in fields.items() if value is not None}
    return Connection(conn_id=found.conn_id, extra=found.extra_dejson, **given).to_environment()


logger = logging.getLogger(__name__)


def report_run(stream: str, planned_lanes: int | None, reports: Sequence[LaneReport]) -> IngestReport:
    """Log what the lanes of a run did, and return it. `planned_lanes` is None when planning failed.

    Raises `IngestIncomplete` when a topic-partition stopped or failed, or a lane left no report: the others' work is
    done all the same, but somebody should look.
    """
    if planned_lanes is None:
        raise IngestIncomplete(f"ingest of {stream} did not begin: the log of the task 'plan' says why")
    run = merge_reports(stream, reports)
    logger.info(
        "ingest of %s: %s messages in %d new objects, %.1f MB, from %d topic-partitions in %d lanes, %.1f s, lag %s",
        *(stream, f"{run.messages:,}", run.objects, run.size_bytes / 1e6, len(run.partitions), run.lanes, run.seconds),
        f"{run.lag:,}",
    )
    problems = [f"{p.failure.error}: {p.failure.message}" for p in run.failures if p.failure is not None]
    if len(reports) < planned_lanes:
        problems.append(
            f"{planned_lanes - len(reports)} of {planned_lanes} lanes ended without a report: their log says why. "
            f"The next run goes on from the committed offsets"
        )
    if problems:
        raise IngestIncomplete(f"ingest of {stream} is incomplete:\n" + "\n".join(f"- {text}" for text in problems))
    return run


_NAMED = 5


def finalize_hours(config: Config, stream: str) -> None:
    """Mark the hours of a stream that are final.

    Raises `HoursBlocked` when a directory does not hold what the ledger lists, and what `finalize` raises.
    """
    found = finalize(config, stream)
    for note in found.notes:
        logger.warning("%s: %s", stream, note)
    for key in found.removed:
        logger.info("%s: removed %s, of a plan that came to nothing", stream, key)
    logger.info("%s", found)
    if found.blocked:
        named = "; ".join(
            f"{hour.period}: {len(hour.missing)} files missing, {len(hour.strays)} not listed"
            for hour in found.blocked[:_NAMED]
        )
        raise HoursBlocked(
            f"{stream}: {len(found.blocked):,} hours are not what the ledger lists, and are not final before they are "
            f"({named}). What exactly: waybill finalize {stream} --dry-run"
        )


def retry_as_asked(config: Config, stream: str, form: Mapping[str, Any]) -> dict[str, Any]:
    """Retry what the form of `quarantine_retry__<stream>` means, log what came of it, and return the report.

    Raises what `retry_quarantine` raises.
    """
    choice = RowFilter.parse(
        reasons=form["reasons"],
        targets=form["topic_partitions"],
        first_offset=form["first_offset"],
        last_offset=form["last_offset"],
    )
    report = retry_quarantine(config, stream, choice, dry_run=form["dry_run"])
    for line in report.lines():
        logger.info("%s", line)
    return report.document()
