"""`maintenance__<stream>`: every day, the stream's tables are kept in shape, by Spark.

Small files are compacted, old snapshots expire, and what nobody needs any more is removed. Ingest and partition may run
at the same time. Each run looks at the tables anew, so a retry does what is left.
"""

from datetime import timedelta

from airflow.sdk import DAG, dag

from waybill.config import Config, Stream, load_config
from waybill.orchestration.spark_submit import WaybillSparkSubmit


def maintenance_dag(config: Config, name: str, stream: Stream) -> DAG:
    """The DAG of one stream."""

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
    for name, stream in config.streams.items():
        globals()[f"maintenance__{name}"] = maintenance_dag(config, name, stream)


build_all(load_config())
