"""`partition__<stream>`: every hour, what is new in the archive goes to the table, by Spark.

Rows and progress are committed in one snapshot, so a retry or a run by hand starts where the table says and repeats
nothing. Then `check_quarantine` looks at what the run has committed: if too much of it went to quarantine, it fails,
and says why and where to look. The rows are committed all the same, and the next run goes on.

Where a stream's rows go to files, `finalize` marks the hours that are final with `_SUCCESS`.
"""

from datetime import timedelta

from airflow.sdk import DAG, dag, task

from waybill.config import Config, Stream, load_config
from waybill.orchestration.spark_submit import WaybillSparkSubmit, table_asset


# A second try would find nothing else: it only reads. So one alert comes of it, at once.
@task(retries=0)
def check_quarantine(stream: str) -> None:
    from airflow.sdk import get_current_context

    from waybill.orchestration.tasks import begin_task
    from waybill.partition.alert import check_quarantine

    check_quarantine(begin_task(), stream, get_current_context()["dag_run"].start_date)


# Whatever became of the run: the hours before may be final by now.
@task(trigger_rule="all_done")
def finalize(stream: str) -> None:
    from waybill.orchestration.tasks import begin_task, finalize_hours

    finalize_hours(begin_task(), stream)


def partition_dag(config: Config, name: str, stream: Stream) -> DAG:
    """The DAG of one stream."""

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
    for name, stream in config.streams.items():
        globals()[f"partition__{name}"] = partition_dag(config, name, stream)


build_all(load_config())
