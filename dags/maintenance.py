"""`maintenance__<stream>`: maintain the stream's tables with Spark, every day by default.

A run compacts small files, expires old snapshots, and removes files and objects that are no longer needed. Ingest,
partition and dedup may run at the same time. Each run reads the state of the tables first, so a retry does the rest.
"""

from datetime import timedelta

from airflow.sdk import DAG, dag

from waybill.config import Config, Stream, load_config
from waybill.orchestration.spark_submit import WaybillSparkSubmit


def maintenance_dag(config: Config, name: str, stream: Stream) -> DAG:
    """Return the maintenance DAG of one stream."""

    @dag(
        dag_id=f"maintenance__{name}",
        schedule=stream.maintenance.schedule,
        catchup=False,
        max_active_runs=1,
        default_args={"owner": "waybill", "retries": 1, "retry_delay": timedelta(minutes=5)},
        tags=["waybill", "maintenance", name],
        doc_md=__doc__,
    )
    def build() -> None:
        WaybillSparkSubmit(task_id="maintain", job="maintenance", stream=name, config=config)

    return build()


def build_all(config: Config) -> None:
    """Register a DAG for each stream of the config."""
    for name, stream in config.streams.items():
        globals()[f"maintenance__{name}"] = maintenance_dag(config, name, stream)


build_all(load_config())
