"""`partition__<stream>`: every hour, what is new in the archive goes to the table, by Spark.

Rows and progress are committed in one snapshot, so a retry or a run by hand starts where the table says and repeats
nothing.
"""

from datetime import timedelta

from airflow.sdk import DAG, dag

from waybill.config import Config, Stream, load_config
from waybill.orchestration.spark_submit import WaybillSparkSubmit


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
        WaybillSparkSubmit(task_id="partition", job="partition", stream=name, config=config)

    return build()


def build_all(config: Config) -> None:
    for name, stream in config.streams.items():
        globals()[f"partition__{name}"] = partition_dag(config, name, stream)


build_all(load_config())
