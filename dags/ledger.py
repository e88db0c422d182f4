"""`ledger`: balances the log, the archive and the tables of all streams, every morning.

The task stores the results, and the watch reports a stream that does not balance (promise `ledger_balance`). The log
has the offsets. `waybill ledger STREAM` prints the whole balance.
"""

from datetime import timedelta
from typing import Any

from airflow.sdk import dag, task

from waybill.interfaces.airflow.dag_arguments import Retries, dag_arguments

TIMEOUT = timedelta(hours=4)


@task(execution_timeout=TIMEOUT)
def balance() -> dict[str, Any]:
    from waybill.interfaces.airflow.tasks import record_ledgers

    return record_ledgers()


@dag(
    **dag_arguments("ledger", "ledger", longest=TIMEOUT, retries=Retries(2, timedelta(minutes=10))),
    schedule="30 5 * * *",
    max_active_runs=1,
    doc_md=__doc__,
)
def ledger() -> None:
    """Balance all streams."""
    balance()


ledger()
