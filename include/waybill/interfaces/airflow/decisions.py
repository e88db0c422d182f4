"""Log the decision of a person who triggered a DAG run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from waybill.base.decision import Decision
from waybill.config.models import Config
from waybill.interfaces.operations.declaration import Operation


def log_decision(config: Config, operation: Operation, decision: Decision, form: Mapping[str, Any]) -> None:
    """Log that the DAG run of this task executes an operation. Outside of a task, do nothing."""
    from airflow.configuration import conf
    from airflow.sdk import get_current_context

    from waybill.interfaces.operations.audit_log import TriggeredRun, log_run
    from waybill.interfaces.web.frame import Links

    try:
        run = get_current_context()["dag_run"]
    except RuntimeError:
        return
    path = urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/")
    href = Links("", path).run(run.dag_id, run.run_id)
    log_run(config, TriggeredRun(run.dag_id, run.run_id, run.run_after, href), operation, decision, form)
