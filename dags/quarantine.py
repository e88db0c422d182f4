"""`quarantine_retry__<stream>`: messages in quarantine are parsed again, when somebody asks for it.

Run it after the parser was mended. What can be read now moves to the table, exactly once, whatever dies meanwhile; what
cannot stays. The log says how many, and why. `waybill quarantine ls` shows what there is.
"""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, dag, task

from waybill.config import Config, load_config

PARAMS = {
    "reasons": Param(
        [],
        type="array",
        items={"type": "string"},
        title="Kinds of reason",
        description="Only messages that were refused for one of these, such as not_json; one a line. None: whatever.",
    ),
    "topic_partitions": Param(
        [],
        type="array",
        items={"type": "string"},
        title="Topics or topic-partitions",
        description="Only messages of these: flights, or flights/3; one a line. None: all.",
    ),
    "first_offset": Param(None, type=["null", "integer"], minimum=0, title="From offset"),
    "last_offset": Param(None, type=["null", "integer"], minimum=0, title="To offset", description="Included."),
    "dry_run": Param(False, type="boolean", title="Dry run", description="Only say what would come of it."),
}


@task
def retry(stream: str) -> dict[str, Any]:
    from airflow.sdk import get_current_context

    from waybill.orchestration.tasks import begin_task, retry_as_asked

    return retry_as_asked(begin_task(), stream, get_current_context()["params"])


def quarantine_retry_dag(name: str) -> DAG:
    """The DAG of one stream."""

    @dag(
        dag_id=f"quarantine_retry__{name}",
        schedule=None,
        max_active_runs=1,
        params=PARAMS,
        default_args={"owner": "waybill", "retries": 2, "retry_delay": timedelta(minutes=1)},
        tags=["waybill", "quarantine", name],
        doc_md=__doc__,
    )
    def build() -> None:
        retry(name)

    return build()


def build_all(config: Config) -> None:
    for name in config.streams:
        globals()[f"quarantine_retry__{name}"] = quarantine_retry_dag(name)


build_all(load_config())
