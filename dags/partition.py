"""`partition`, and `partition_group__<group>`: turn new messages of the archive into table rows, every hour by default.

One Spark application works on the streams of the group, some of them at a time. A stream that fails does not hinder
the others. `results` reads the results; each stream with new rows or an error has a task `stream`, which fails with the
error and its remedy if the stream failed, if its rows are held for a person's decision, or if they are published with
alerts.

A stream that leaves its group (`partition.group: own`) has a separate DAG `partition__<stream>`, with a separate
application. `check_alerts` then raises the alerts of the published runs, and with `sink: files`, `finalize` marks the
final hours.

One snapshot contains the rows and the progress. So a retry or a run by hand continues at that progress and repeats
nothing.
"""

from collections.abc import Sequence
from datetime import timedelta

from airflow.sdk import DAG, dag, task

from waybill.config.models import Config, Stream, load_valid_streams
from waybill.config.names import Stage
from waybill.interfaces.airflow.dag_arguments import Retries, group_arguments, stream_arguments
from waybill.interfaces.airflow.deadlines import deadline_arguments
from waybill.interfaces.airflow.groups import add_result_tasks
from waybill.interfaces.airflow.run_params import check_params, streams_param
from waybill.interfaces.airflow.spark_submit import SubmitGroup, SubmitStream, table_asset

RETRIES = Retries(2, timedelta(minutes=1))


# --- a group ----------------------------------------------------------------------------------------------------------


def group_dag(config: Config, group: str, streams: Sequence[str]) -> DAG:
    """Return the partition DAG of a group."""
    settings = config.group(group).spark_job(Stage.PARTITION)

    @dag(
        **group_arguments(Stage.PARTITION, group, settings.pool, settings.timeout, RETRIES),
        **deadline_arguments(config, config.airflow.deadlines.partition),
        schedule=settings.schedule,
        params={"streams": streams_param(streams)},
        doc_md=__doc__,
    )
    def build() -> None:
        submit = SubmitGroup(
            task_id="partition",
            job="partition",
            group=group,
            config=config,
            execution_timeout=settings.timeout,
            pre_execute=check_params,
        )
        add_result_tasks(Stage.PARTITION, group, submit)

    return build()


# --- a stream with a DAG of its own -----------------------------------------------------------------------------------


# The task only reads, so a retry would have the same result: it has no retries, so that the alert is immediate.
@task(retries=0)
def check_alerts(stream: str) -> None:
    from airflow.sdk import get_current_context

    from waybill.interfaces.airflow.tasks import begin_task
    from waybill.tables.partition.alerts import check_alerts

    check_alerts(begin_task(), stream, get_current_context()["dag_run"].start_date)


# Run also after a failed partition run: earlier hours may have become final.
@task(trigger_rule="all_done")
def finalize(stream: str) -> None:
    from waybill.interfaces.airflow.tasks import begin_task, finalize_hours

    finalize_hours(begin_task(), stream)


def stream_dag(config: Config, name: str, stream: Stream) -> DAG:
    """Return the partition DAG of one stream."""

    @dag(
        **stream_arguments(Stage.PARTITION, name, stream.partition, stream.partition.timeout, RETRIES),
        **deadline_arguments(config, config.airflow.deadlines.partition),
        schedule=stream.partition.schedule,
        doc_md=__doc__,
    )
    def build() -> None:
        partition = SubmitStream(
            task_id="partition",
            job="partition",
            stream=name,
            config=config,
            execution_timeout=stream.partition.timeout,
            arguments=["--no-alerts"],
            outlets=[table_asset(config, stream)],
        )
        partition >> check_alerts(name)
        if stream.sink.is_files:
            partition >> finalize(name)

    return build()


def build_all(config: Config) -> None:
    """Register a DAG for each group with streams, and for each stream that is in none."""
    for group, streams in config.streams_by_group(Stage.PARTITION).items():
        globals()[f"group__{group}"] = group_dag(config, group, streams)
    for name, stream in config.streams.items():
        if stream.partition.has_own_dag:
            globals()[f"stream__{name}"] = stream_dag(config, name, stream)


build_all(load_valid_streams())
