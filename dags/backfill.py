"""`backfill`: build a range of a stream's table again from the archive, when triggered by hand.

The form chooses the action. `plan` logs what a backfill would read and how long it would take. `run` requests a
backfill and builds it with the present config on a branch of the table; `report` logs its audit and the changes.
Consumers do not see these rows until a run with `promote`; the DAG `backfill_undo` restores the earlier rows. Partition
runs go on during a backfill. With a generation that is not live, `run` builds that generation on its branch, from the
archive or from Kafka, and `promote` shows it instead of the live one.

The request is stored. So a retry, also of a run whose Spark application was killed, continues with the tasks that are
not done.
"""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, dag, task

from waybill.config.models import Config, load_valid_streams
from waybill.interfaces.airflow.backfill import SubmitBackfill
from waybill.interfaces.airflow.dag_arguments import Retries, dag_arguments
from waybill.interfaces.airflow.deadlines import deadline_arguments
from waybill.interfaces.airflow.forms import form_params
from waybill.interfaces.airflow.run_params import check_params
from waybill.interfaces.operations.catalogue import BACKFILL_FORM, UNDO_FORM

RETRIES = Retries(2, timedelta(minutes=1))
UNDO_DOC = """Take the promotion of a backfill back: restore the rows that it replaced.

This is a DAG of its own, so that Airflow can grant it to fewer people than `backfill`. What was published since the
promotion stays. The undo is stored with its reason and the user who triggered the run.
"""


@task(pre_execute=check_params)
def act() -> str | None:
    from airflow.sdk import get_current_context

    from waybill.interfaces.airflow.backfill import act_from_form
    from waybill.interfaces.airflow.tasks import begin_task

    context = get_current_context()
    by = context["dag_run"].triggering_user_name
    return act_from_form(begin_task(), context["params"], by, context["run_id"])


@task(pre_execute=check_params)
def undo() -> str:
    from airflow.sdk import get_current_context

    from waybill.interfaces.airflow.backfill import undo_from_form
    from waybill.interfaces.airflow.tasks import begin_task

    context = get_current_context()
    return undo_from_form(begin_task(), context["params"], context["dag_run"].triggering_user_name)


@task
def report(backfill: str) -> dict[str, Any]:
    from airflow.sdk import get_current_context

    from waybill.interfaces.airflow.backfill import report_built
    from waybill.interfaces.airflow.tasks import begin_task

    return report_built(begin_task(), get_current_context()["params"]["stream"], backfill)


def backfill_dag(config: Config) -> DAG:
    """Return the DAG `backfill`; its form offers the streams of the config."""

    @dag(
        **dag_arguments("backfill", "backfill", longest=config.spark.backfill_timeout, retries=RETRIES),
        **deadline_arguments(config, config.airflow.deadlines.backfill),
        schedule=None,
        params=form_params(BACKFILL_FORM, config),
        doc_md=__doc__,
    )
    def build() -> None:
        requested = act()
        built = SubmitBackfill(task_id="build", config=config, execution_timeout=config.spark.backfill_timeout)
        requested >> built >> report(requested)

    return build()


def undo_dag(config: Config) -> DAG:
    """Return the DAG `backfill_undo`; its form offers the streams of the config."""

    @dag(
        **dag_arguments("backfill_undo", "backfill", retries=RETRIES),
        schedule=None,
        params=form_params(UNDO_FORM, config),
        doc_md=UNDO_DOC,
    )
    def build() -> None:
        undo()

    return build()


backfill = backfill_dag(load_valid_streams())
backfill_undo = undo_dag(load_valid_streams())
