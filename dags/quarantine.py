"""`quarantine_retry`: parse messages of a stream in quarantine again, when triggered by hand.

Run it after a correction of the parser or the config. Messages that can be parsed now move to the table, exactly once,
even if the task is killed and retried; the others stay. The log shows their numbers and reasons. The rows are audited
first: if a critical check fails, nothing moves.
`waybill quarantine ls` lists the messages in quarantine.
"""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, dag, task

from waybill.config.models import Config, load_valid_streams
from waybill.interfaces.airflow.dag_arguments import Retries, dag_arguments
from waybill.interfaces.airflow.forms import form_params
from waybill.interfaces.airflow.run_params import check_params
from waybill.interfaces.operations.catalogue import RETRY_FORM

RETRIES = Retries(2, timedelta(minutes=1))


@task(pre_execute=check_params)
def retry() -> dict[str, Any]:
    from airflow.sdk import get_current_context

    from waybill.interfaces.airflow.tasks import begin_task, retry_from_form

    context = get_current_context()
    return retry_from_form(begin_task(), context["params"], context["dag_run"].triggering_user_name)


def quarantine_retry_dag(config: Config) -> DAG:
    """Return the DAG; its form offers the streams of the config. A retry may take as long as a partition run.

    Runs of several streams may be active at once. If two runs of one stream are active, each message is moved by only
    one of them.
    """
    longest = max((stream.partition.timeout for stream in config.streams.values()), default=timedelta(hours=1))

    @dag(
        **dag_arguments("quarantine_retry", "quarantine", longest=longest, retries=RETRIES),
        schedule=None,
        params=form_params(RETRY_FORM, config),
        doc_md=__doc__,
    )
    def build() -> None:
        retry.override(execution_timeout=longest)()

    return build()


quarantine_retry = quarantine_retry_dag(load_valid_streams())
