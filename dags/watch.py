"""`watch`: measures the promises of all streams each minute, and sends an alert for each that is broken.

A broken promise is an incident: `waybill incidents ls` lists them. The run itself fails only if the watch cannot work.
If Airflow is down, it cannot report this, so run `waybill watch` outside of Airflow too: two watches send one message.
"""

from datetime import timedelta
from typing import Any

from airflow.sdk import dag, task

from waybill.interfaces.airflow.dag_arguments import dag_arguments

TIMEOUT = timedelta(minutes=5)


@task(execution_timeout=TIMEOUT)
def measure() -> dict[str, Any]:
    from waybill.interfaces.airflow.tasks import watch_promises

    return watch_promises()


@dag(
    **dag_arguments("watch", "watch", longest=TIMEOUT),
    schedule="* * * * *",
    max_active_runs=1,
    doc_md=__doc__,
)
def watch() -> None:
    """Watch once."""
    measure()


watch()
