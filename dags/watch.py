"""`watch`: measures the promises of all streams each minute, and sends an alert for each that is broken.

A broken promise is an incident: `waybill incidents ls` lists them. The run itself fails only if the watch cannot work.
A dead Airflow cannot report itself, so run `waybill watch` outside of Airflow, too: two watches send one message.
"""

from datetime import timedelta
from typing import Any

from airflow.sdk import dag, task


@task(execution_timeout=timedelta(minutes=5))
def measure() -> dict[str, Any]:
    from waybill.orchestration.tasks import watch_promises

    return watch_promises()


@dag(
    dag_id="watch",
    schedule="* * * * *",
    catchup=False,
    max_active_runs=1,
    default_args={"owner": "waybill", "retries": 0},
    tags=["waybill", "watch"],
    doc_md=__doc__,
)
def watch() -> None:
    """Watch once."""
    measure()


watch()
