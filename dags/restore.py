"""`restore` and `rehearse`: put archived messages back into Kafka topics, each once.

`restore` is triggered by hand. The form chooses the action: `plan` logs the ranges of a restore and the problems that
the preflight finds, `run` restores and compares, `verify` compares a restore again. A retry continues at the end of the
target's log.

`rehearse` restores a random range of the archive every night into a separate topic, compares it, deletes the topic, and
stores how long it took. An object that cannot be restored fails the run, which names it.
"""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, dag, task

from waybill.config.models import Config, load_valid_streams
from waybill.interfaces.airflow.dag_arguments import Retries, dag_arguments
from waybill.interfaces.airflow.forms import form_params
from waybill.interfaces.airflow.run_params import check_params
from waybill.interfaces.operations.catalogue import REHEARSAL_FORM, RESTORE_FORM

RETRIES = Retries(2, timedelta(minutes=1))


def restore_dag(config: Config) -> DAG:
    """Return the DAG `restore`; its form offers the streams of the config."""

    @task(pre_execute=check_params, execution_timeout=config.restore.timeout)
    def act() -> str:
        from airflow.sdk import get_current_context

        from waybill.interfaces.airflow.restore import restore_from_form
        from waybill.interfaces.airflow.tasks import begin_task

        context = get_current_context()
        run = context["dag_run"]
        return restore_from_form(
            begin_task(), context["params"], run.triggering_user_name, context["run_id"], run.run_after
        )

    @task(execution_timeout=config.restore.timeout)
    def verify(restore: str) -> dict[str, Any]:
        from waybill.interfaces.airflow.restore import verify_from_form
        from waybill.interfaces.airflow.tasks import begin_task

        return verify_from_form(begin_task(), restore)

    @dag(
        **dag_arguments("restore", "restore", longest=2 * config.restore.timeout, retries=RETRIES),
        schedule=None,
        params=form_params(RESTORE_FORM, config),
        doc_md=__doc__,
    )
    def restore() -> None:
        verify(act())

    return restore()


def rehearse_dag(config: Config) -> DAG:
    """Return the DAG `rehearse`."""

    @task(pre_execute=check_params, execution_timeout=config.restore.timeout)
    def rehearse() -> dict[str, Any]:
        from airflow.sdk import get_current_context

        from waybill.interfaces.airflow.restore import rehearse_from_form
        from waybill.interfaces.airflow.tasks import begin_task

        context = get_current_context()
        return rehearse_from_form(begin_task(), context["params"], context["run_id"])

    @dag(
        **dag_arguments("rehearse", "restore", longest=config.restore.timeout, retries=RETRIES),
        schedule=config.restore.rehearsal.schedule,
        max_active_runs=1,
        params=form_params(REHEARSAL_FORM, config),
        doc_md=__doc__,
    )
    def rehearse_archive() -> None:
        rehearse()

    return rehearse_archive()


config = load_valid_streams()
restore = restore_dag(config)
rehearse = rehearse_dag(config)
