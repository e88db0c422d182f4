"""`partition__<stream>`: turn new messages of the archive into table rows with Spark, every hour by default.

One snapshot contains the rows and the progress. So a retry or a run by hand continues at that progress and repeats
nothing. `check_quarantine` fails if too many of the run's messages went to quarantine; its message gives reasons and
examples. The rows are committed even so, and the next run continues.

For streams with `sink: files`, `finalize` marks the final hours with `_SUCCESS`.
"""

from datetime import timedelta

from airflow.sdk import DAG, dag, task

from waybill.config import Config, Stream, load_config
from waybill.orchestration.spark_submit import WaybillSparkSubmit, table_asset


# It only reads, so a retry would find the same: it fails, and alerts, once and at once.
@task(retries=0)
def check_quarantine(stream: str) -> None:
    from airflow.sdk import get_current_context

    from waybill.orchestration.tasks import begin_task
    from waybill.partition.report import check_quarantine

    check_quarantine(begin_task(), stream, get_current_context()["dag_run"].start_date)


# Also after a failed partition run: earlier hours may have become final.
@task(trigger_rule="all_done")
def finalize(stream: str) -> None:
    from waybill.orchestration.tasks import begin_task, finalize_hours

    finalize_hours(begin_task(), stream)


def partition_dag(config: Config, name: str, stream: Stream) -> DAG:
    """Return the partition DAG of one stream."""

    @dag(
        dag_id=f"partition__{name}",
        schedule=stream.partition.schedule,
        catchup=False,
        max_active_runs=1,
        default_args={"owner": "waybill", "retries": 2, "retry_delay": timedelta(minutes=1)},
        tags=["waybill", "partition", name],
        doc_md=__doc__,
    )
    def build() -> None:
        partition = WaybillSparkSubmit(
            task_id="partition",
            job="partition",
            stream=name,
            config=config,
            arguments=["--no-quarantine-alert"],
            outlets=[table_asset(config, stream)],
        )
        partition >> check_quarantine(name)
        if stream.sink.is_files:
            partition >> finalize(name)

    return build()


def build_all(config: Config) -> None:
    """Register a DAG for each stream of the config."""
    for name, stream in config.streams.items():
        globals()[f"partition__{name}"] = partition_dag(config, name, stream)


build_all(load_config())
