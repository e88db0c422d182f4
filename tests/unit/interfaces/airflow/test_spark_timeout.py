"""A Spark application that does not end within its timeout."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowTaskTimeout
from airflow.sdk.execution_time.timeout import timeout

from waybill.config.models import Config
from waybill.interfaces.airflow import spark_submit as module
from waybill.interfaces.airflow.spark_submit import SubmitStream

_STREAM = {"topics": ["t"], "table": "x.t", "parser": {"event_time": {"field": "at"}}}


def test_an_application_that_does_not_end_is_killed_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submit = tmp_path / "spark-submit"
    submit.write_text("#!/bin/sh\nexec sleep 100\n")
    submit.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[1]"}')
    monkeypatch.setattr(module, "export_connections", lambda _: None)
    config = Config.model_validate({"version": 1, "storage": {"bucket": "waybill"}, "streams": {"orders": _STREAM}})
    task: Any = SubmitStream(
        task_id="partition", job="partition", stream="orders", config=config, execution_timeout=timedelta(seconds=2)
    )
    # As Airflow's task runner does it.
    with pytest.raises(AirflowTaskTimeout) as raised, timeout(task.execution_timeout.total_seconds()):
        task.execute({"params": {}})
    task.on_kill()
    process = task._hook._submit_sp
    assert process.wait(10) == -signal.SIGKILL
    process.stdout.close()
    assert "waybill-partition-orders was waited for, and had not ended after 0:00:02" in str(raised.value)
