"""`quality_decision`: release or reject the held run of a stream, when triggered by hand.

A run is held when one of its critical checks failed: readers do not see its rows, and later runs wait. `release`
publishes the rows unchanged. `reject` drops them, and the next partition run parses the same messages again: correct
the config first. The decision is stored with its reason and the user who triggered the run.
"""

from typing import Any

from airflow.sdk import DAG, dag, task

from waybill.config.models import Config, load_valid_streams
from waybill.interfaces.airflow.dag_arguments import dag_arguments
from waybill.interfaces.airflow.forms import form_params
from waybill.interfaces.airflow.run_params import check_params
from waybill.interfaces.operations.catalogue import DECISION_FORM


@task(pre_execute=check_params)
def decide() -> dict[str, Any]:
    from airflow.sdk import get_current_context

    from waybill.interfaces.airflow.tasks import begin_task, decide_from_form

    context = get_current_context()
    return decide_from_form(begin_task(), context["params"], context["dag_run"].triggering_user_name)


def quality_decision_dag(config: Config) -> DAG:
    """Return the DAG; its form offers the streams of the config."""

    @dag(
        **dag_arguments("quality_decision", "quality"),
        schedule=None,
        params=form_params(DECISION_FORM, config),
        doc_md=__doc__,
    )
    def build() -> None:
        decide()

    return build()


quality_decision = quality_decision_dag(load_valid_streams())
