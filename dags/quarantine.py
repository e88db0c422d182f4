"""`quarantine_retry__<stream>`: parse messages in quarantine again, when triggered by hand.

Run it after a correction of the parser or the config. Messages that can be parsed now move to the table, exactly once,
even if the task is killed and retried; the others stay. The log shows their numbers and reasons. The rows are audited
first: if a critical check fails, nothing moves.
`waybill quarantine ls` lists the messages in quarantine.
"""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, dag, task

from waybill.config import Config, load_valid_streams
from waybill.orchestration.dag_arguments import Retries, dag_arguments

RETRIES = Retries(2, timedelta(minutes=1))

PARAMS = {
    "reasons": Param(
        [],
        type="array",
        items={"type": "string"},
        title="Kinds of reason",
        description="Only messages with one of these reasons, such as not_json; one per line. Empty: all reasons.",
    ),
    "topic_partitions": Param(
        [],
        type="array",
        items={"type": "string"},
        title="Topics or topic-partitions",
        description="Only messages of these, such as flights or flights/3; one per line. Empty: all.",
    ),
    "first_offset": Param(None, type=["null", "integer"], minimum=0, title="From offset"),
    "last_offset": Param(None, type=["null", "integer"], minimum=0, title="To offset", description="Included."),
    "accept_failed_checks": Param(
        None,
        type=["null", "string"],
        title="Move the messages although critical checks fail, because",
        description="The reason; it is stored with your name. Empty: if a critical check fails, nothing is moved.",
    ),
    "dry_run": Param(False, type="boolean", title="Dry run", description="Only report what a retry would move."),
}


@task
def retry(stream: str) -> dict[str, Any]:
    from airflow.sdk import get_current_context

    from waybill.orchestration.tasks import begin_task, retry_from_form

    context = get_current_context()
    return retry_from_form(begin_task(), stream, context["params"], context["dag_run"].triggering_user_name)


def quarantine_retry_dag(name: str, timeout: timedelta) -> DAG:
    """Return the DAG of one stream. A retry may take as long as a partition run."""

    @dag(
        **dag_arguments(f"quarantine_retry__{name}", "quarantine", name, longest=timeout, retries=RETRIES),
        schedule=None,
        max_active_runs=1,
        params=PARAMS,
        doc_md=__doc__,
    )
    def build() -> None:
        retry.override(execution_timeout=timeout)(name)

    return build()


def build_all(config: Config) -> None:
    """Register a DAG for each stream of the config."""
    for name, stream in config.streams.items():
        timeout = stream.partition.timeout
        globals()[f"quarantine_retry__{name}"] = quarantine_retry_dag(name, timeout)


build_all(load_valid_streams())
