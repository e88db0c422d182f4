"""`replay`, `replay_request` and `replay_index`: deliver the messages of some keys between two times again.

`replay_request` is a form that creates a request. `replay` serves the open requests, every minute. An interrupted
request continues at its cursor. `replay_index` records every hour which parts of the archive hold which keys, so that a
request need not read the whole archive, and removes requests that ended long ago. These DAGs exist only if the config
has a section `replay`.
"""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, dag, task

from waybill.config.models import Config, load_valid_streams
from waybill.interfaces.airflow.dag_arguments import Retries, dag_arguments
from waybill.interfaces.airflow.forms import form_params
from waybill.interfaces.airflow.replay import SERVE_SECONDS
from waybill.interfaces.airflow.run_params import check_params
from waybill.interfaces.operations.catalogue import REPLAY_FORM

SERVE_TIMEOUT = timedelta(seconds=SERVE_SECONDS) + timedelta(minutes=6)
"""A worker ends between two messages; the last delivery to a target that does not answer may take minutes."""
INDEX_TIMEOUT = timedelta(hours=2)


def replay_dag() -> DAG:
    """Return the DAG `replay`."""

    @task
    def plan() -> list[int]:
        from airflow.sdk.exceptions import DownstreamTasksSkipped

        from waybill.interfaces.airflow.replay import count_workers
        from waybill.interfaces.airflow.tasks import begin_replay_task

        workers = count_workers(begin_replay_task())
        if not workers:
            raise DownstreamTasksSkipped(tasks=["serve"])
        return list(range(workers))

    @task(execution_timeout=SERVE_TIMEOUT)
    def serve(number: int) -> dict[str, int]:
        from waybill.interfaces.airflow.replay import serve_requests
        from waybill.interfaces.airflow.tasks import begin_replay_task

        return serve_requests(begin_replay_task(), number)

    @dag(
        **dag_arguments("replay", "replay", longest=SERVE_TIMEOUT),
        schedule="* * * * *",
        max_active_runs=1,
        doc_md=__doc__,
    )
    def replay() -> None:
        serve.expand(number=plan())

    return replay()


def request_dag(config: Config) -> DAG:
    """Return the DAG `replay_request`; its form offers the streams of the config."""

    @task(pre_execute=check_params)
    def create() -> str:
        from airflow.sdk import get_current_context

        from waybill.interfaces.airflow.replay import create_from_form
        from waybill.interfaces.airflow.tasks import begin_replay_task

        context = get_current_context()
        by = context["dag_run"].triggering_user_name
        return create_from_form(begin_replay_task(), context["params"], by, context["run_id"])

    @dag(
        **dag_arguments("replay_request", "replay"),
        schedule=None,
        params=form_params(REPLAY_FORM, config),
        doc_md=__doc__,
    )
    def replay_request() -> None:
        create()

    return replay_request()


def index_dag() -> DAG:
    """Return the DAG `replay_index`."""

    @task(execution_timeout=INDEX_TIMEOUT)
    def index() -> dict[str, Any]:
        from waybill.interfaces.airflow.replay import index_streams
        from waybill.interfaces.airflow.tasks import begin_replay_task

        return index_streams(begin_replay_task())

    @dag(
        **dag_arguments("replay_index", "replay", longest=INDEX_TIMEOUT, retries=Retries(1, timedelta(minutes=5))),
        schedule="@hourly",
        max_active_runs=1,
        doc_md=__doc__,
    )
    def replay_index() -> None:
        index()

    return replay_index()


config = load_valid_streams()
if config.replay is not None:
    replay = replay_dag()
    request = request_dag(config)
    index = index_dag()
