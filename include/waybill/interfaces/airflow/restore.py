"""The code of the DAGs `restore` and `rehearse`: their tasks."""

from __future__ import annotations

import hashlib
import logging
import signal
import threading
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from waybill.base.decision import Decision
from waybill.base.errors import RestoreRefused, RestoreStopped, WaybillError
from waybill.config.models import Config
from waybill.interfaces.airflow.decisions import log_decision
from waybill.interfaces.operations.catalogue import RESTORE

logger = logging.getLogger(__name__)


def restore_from_form(config: Config, params: Mapping[str, Any], by: str | None, run_id: str, at: datetime) -> str:
    """Execute the action of the form, and return the restore's id. Skips the following tasks after a dry run.

    A retry of the same DAG run finds its restore again. Raises `AirflowFailException` for errors that a retry cannot
    solve.
    """
    from waybill.archive.restore import RestoreRequest, begin_restore, preview_restore

    try:
        if params["action"] == "verify" or params["restore"]:
            if not params["restore"]:
                raise RestoreRefused("give the id of the restore")
            if params["action"] == "run":
                _run(config, params["restore"])
            return str(params["restore"])
        request = RestoreRequest.parse(
            params["stream"],
            params["to"],
            to_topic=params["to_topic"],
            offsets=params["offsets"] or (),
            topic_partitions=params["topic_partitions"] or (),
            until=params["until"],
            create=params["create"],
            suspend_cleanup=params["suspend_cleanup"],
            registry=params["registry"],
        )
        if params["action"] == "plan":
            preview = preview_restore(config, request)
            for each in preview.ranges:
                logger.info(
                    "%s: offsets %d–%d, %d bytes", each.tp, each.first_offset, each.next_offset - 1, each.size_bytes
                )
            for problem in preview.problems:
                logger.warning("%s: %s", "warning" if problem.is_warning else "refused", problem)
            raise AirflowSkipException("the restore is possible" if preview.is_possible else "the restore is refused")
        if not params["reason"]:
            raise RestoreRefused("give the reason; it is stored with the plan")
        digest = hashlib.sha256(run_id.encode()).hexdigest()[:4]
        decision = Decision.of_run(by, params["reason"])
        log_decision(config, RESTORE, decision, params)
        plan = begin_restore(
            config, request, by=decision.by, reason=params["reason"], restore_id=f"{at:%Y%m%d}_{digest}"
        )
        for warning in plan.warnings:
            logger.warning("warning: %s", warning)
        _run(config, plan.id)
    except RestoreRefused as error:
        raise AirflowFailException(str(error)) from error
    return plan.id


def _run(config: Config, restore: str) -> None:
    """Execute a restore. SIGTERM (a cleared task, a timeout) ends it after all sent messages are acknowledged."""
    from waybill.archive.restore import run_restore

    stop = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        results = run_restore(config, restore, should_stop=stop.is_set)
    finally:
        signal.signal(signal.SIGTERM, before)
    errors: list[WaybillError] = [each.error for each in results if each.error is not None]
    for each in results:
        logger.info("%s to %s: %d messages produced", each.plan.source, each.plan.target, each.messages)
    if errors:
        raise errors[0]
    if not all(each.is_complete for each in results):
        raise RestoreStopped(f"restore {restore} was interrupted; the next try continues")


def verify_from_form(config: Config, restore: str) -> dict[str, Any]:
    """Compare a restore with the archive. Raises `AirflowFailException` if anything differs."""
    from waybill.archive.restore import compare_restore

    report = compare_restore(config, restore)
    if not report["sound"]:
        differences = [f"{each['target']}: {each['difference']}" for each in report["partitions"] if each["difference"]]
        raise AirflowFailException("\n".join([f"restore {restore} differs from the archive", *differences]))
    return {"restore": restore, "messages": report["messages"], "not_checked": report["not_checked"]}


def rehearse_from_form(config: Config, params: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """Rehearse a restore, and return its figures."""
    from waybill.archive.restore import rehearse

    found = rehearse(config, run_id, stream=params["stream"])
    if found is None:
        raise AirflowSkipException("nothing is archived in the format `kafka`")
    logger.info(
        "restored %d messages of %s/%d in %.1f s, compared in %.1f s; the whole stream would take %.0f s",
        found.messages,
        found.topic,
        found.partition,
        found.restore_seconds,
        found.compare_seconds,
        found.recovery_seconds,
    )
    return {
        "restore": found.restore,
        "stream": found.stream,
        "messages": found.messages,
        "size_bytes": found.size_bytes,
        "restore_seconds": round(found.restore_seconds, 3),
        "recovery_seconds": round(found.recovery_seconds, 1),
    }
