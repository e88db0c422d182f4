"""`airflow_cleanup`: removes old rows from Airflow's own database, every night.

Each DAG run leaves rows in Airflow's database: of the run, its task instances, their results and log events. A DAG
that runs every minute leaves thousands a day. This DAG runs `airflow db clean` for rows that are older than
`keep_days`. Waybill does not need these rows. The latest scheduled run of each DAG stays. Task logs are files, which
this DAG does not remove.

With `dry_run` the log shows how many rows a run would remove.
"""

from datetime import timedelta

from airflow.sdk import Param, dag, task

from waybill.interfaces.airflow.dag_arguments import Retries, dag_arguments

TIMEOUT = timedelta(hours=4)

PARAMS = {
    "keep_days": Param(
        30,
        type="integer",
        minimum=1,
        maximum=3650,
        title="Days to keep",
        description="Rows of DAG runs, task instances, log events and results that are older are removed.",
    ),
    "dry_run": Param(False, type="boolean", title="Dry run", description="Only count the rows."),
}


@task(execution_timeout=TIMEOUT)
def clean() -> None:
    from datetime import UTC, datetime

    from airflow.sdk import get_current_context
    from airflow.sdk.exceptions import AirflowFailException

    from waybill.base.errors import ConfigError
    from waybill.interfaces.airflow.airflow_cleanup import clean_airflow_database

    context = get_current_context()
    run, params = context["dag_run"], context["params"]
    keep = timedelta(days=params["keep_days"])
    try:
        clean_airflow_database(run.dag_id, run.run_id, keep, datetime.now(UTC), dry_run=params["dry_run"])
    except ConfigError as error:
        raise AirflowFailException(str(error)) from error  # a retry would find the same database


@dag(
    **dag_arguments("airflow_cleanup", "maintenance", longest=TIMEOUT, retries=Retries(2, timedelta(minutes=10))),
    schedule="30 3 * * *",
    max_active_runs=1,
    params=PARAMS,
    doc_md=__doc__,
)
def airflow_cleanup() -> None:
    """Clean Airflow's database."""
    clean()


airflow_cleanup()
