"""`maintenance`, and `maintenance_group__<group>`: maintain tables with Spark, every day by default.

A run compacts small files, expires old snapshots, and removes files and objects that are no longer needed. Ingest,
partition and dedup may run at the same time. Each run reads the state of the tables first, so a retry does the
remaining work.

One Spark application works on the streams of the group. `results` reads the results; each stream whose tables changed
has a task `stream`, which fails with the error and its remedy if the stream failed. A stream that leaves its group
(`maintenance.group: own`) has a separate DAG `maintenance__<stream>`, with a separate application.
"""

from collections.abc import Sequence
from datetime import timedelta

from airflow.sdk import DAG, dag

from waybill.config.models import Config, Stream, load_valid_streams
from waybill.config.names import Stage
from waybill.interfaces.airflow.dag_arguments import Retries, group_arguments, stream_arguments
from waybill.interfaces.airflow.groups import add_result_tasks
from waybill.interfaces.airflow.run_params import check_params, streams_param
from waybill.interfaces.airflow.spark_submit import SubmitGroup, SubmitStream

RETRIES = Retries(1, timedelta(minutes=5))


def group_dag(config: Config, group: str, streams: Sequence[str]) -> DAG:
    """Return the maintenance DAG of a group."""
    settings = config.group(group).spark_job(Stage.MAINTENANCE)

    @dag(
        **group_arguments(Stage.MAINTENANCE, group, settings.pool, settings.timeout, RETRIES),
        schedule=settings.schedule,
        params={"streams": streams_param(streams)},
        doc_md=__doc__,
    )
    def build() -> None:
        submit = SubmitGroup(
            task_id="maintain",
            job="maintenance",
            group=group,
            config=config,
            execution_timeout=settings.timeout,
            pre_execute=check_params,
        )
        add_result_tasks(Stage.MAINTENANCE, group, submit)

    return build()


def stream_dag(config: Config, name: str, stream: Stream) -> DAG:
    """Return the maintenance DAG of one stream."""

    @dag(
        **stream_arguments(Stage.MAINTENANCE, name, stream.maintenance, stream.maintenance.timeout, RETRIES),
        schedule=stream.maintenance.schedule,
        doc_md=__doc__,
    )
    def build() -> None:
        SubmitStream(
            task_id="maintain",
            job="maintenance",
            stream=name,
            config=config,
            execution_timeout=stream.maintenance.timeout,
        )

    return build()


def build_all(config: Config) -> None:
    """Register a DAG for each group with streams, and for each stream that is in none."""
    for group, streams in config.streams_by_group(Stage.MAINTENANCE).items():
        globals()[f"group__{group}"] = group_dag(config, group, streams)
    for name, stream in config.streams.items():
        if stream.maintenance.has_own_dag:
            globals()[f"stream__{name}"] = stream_dag(config, name, stream)


build_all(load_valid_streams())
