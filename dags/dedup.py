"""`dedup`, and `dedup_group__<group>`: copy new rows of tables to unique tables, each message id once, with Spark.

A run starts after each partition run that committed rows of the group's streams, and by its own schedule. One Spark
application works on the streams of the group: it sweeps, then merges small sorted runs of the key index, which is
derived from the unique table. `results` reads the results; each stream with new rows or an error has a task `stream`,
which fails with the error and its remedy if the stream failed, or if the budget of the key index makes the window too
short (`dedup.window`, `dedup.floor`).

A stream that leaves its group (`dedup.group: own`) has a separate DAG `dedup__<stream>`, with a separate application.
Its runs start after partition runs of the stream; `merge` merges sorted runs, and `check_window` checks the window.

One snapshot of the unique table contains the rows and the position of the sweep. So a retry or a run by hand continues
at that position and repeats nothing.
"""

from collections.abc import Sequence
from datetime import timedelta

from airflow.sdk import DAG, Asset, AssetAny, AssetOrTimeSchedule, CronTriggerTimetable, Param, dag, task

from waybill.config.models import Config, Dedup, load_valid_streams
from waybill.config.names import Stage
from waybill.interfaces.airflow.dag_arguments import Retries, group_arguments, stream_arguments
from waybill.interfaces.airflow.forms import form_param
from waybill.interfaces.airflow.groups import add_result_tasks, partition_assets
from waybill.interfaces.airflow.run_params import check_sweep_range, streams_param
from waybill.interfaces.airflow.spark_submit import SubmitGroup, SubmitStream, table_asset
from waybill.interfaces.operations.declaration import Kind, Parameter

RETRIES = Retries(2, timedelta(minutes=1))

_SINCE = Parameter(
    name="since",
    title="Since",
    help="For the first sweep: leave out, for good, the rows that were committed before this time, such as "
    "2026-01-01T00:00:00Z",
    if_empty="leave no row out",
    kind=Kind.TIME,
)
_UNTIL = Parameter(
    name="until",
    title="Until",
    help="Sweep only rows that were committed by this time, such as 2026-01-31T00:00:00Z",
    if_empty="all rows",
    kind=Kind.TIME,
)
PARAMS = {
    "since": form_param(_SINCE, []),
    "until": form_param(_UNTIL, []),
    "rebuild_index": Param(
        False,
        type="boolean",
        title="Rebuild the key index",
        description="First rebuild the key index from the unique table. The result of a sweep does not change.",
    ),
}

ARGUMENTS = [
    "{{ '--since=' ~ params.since if params.since else '' }}",
    "{{ '--until=' ~ params.until if params.until else '' }}",
    "{{ '--rebuild-index' if params.rebuild_index else '' }}",
]


def after_any(assets: Sequence[Asset], cron: str) -> AssetOrTimeSchedule:
    """Return the schedule of a DAG that starts after an update of any of the assets, and by the clock."""
    return AssetOrTimeSchedule(assets=AssetAny(*assets), timetable=CronTriggerTimetable(cron, timezone="UTC"))


# --- a group ----------------------------------------------------------------------------------------------------------


def group_dag(config: Config, group: str, streams: Sequence[str]) -> DAG:
    """Return the dedup DAG of a group."""
    settings = config.group(group).spark_job(Stage.DEDUP)

    @dag(
        **group_arguments(Stage.DEDUP, group, settings.pool, settings.timeout, RETRIES),
        description="each message id once",
        schedule=after_any(partition_assets(config, streams), settings.schedule),
        params={"streams": streams_param(streams), **PARAMS},
        doc_md=__doc__,
    )
    def build() -> None:
        submit = SubmitGroup(
            task_id="sweep",
            job="dedup",
            group=group,
            config=config,
            execution_timeout=settings.timeout,
            arguments=ARGUMENTS,
            pre_execute=check_sweep_range,
        )
        add_result_tasks(Stage.DEDUP, group, submit)

    return build()


# --- a stream with a DAG of its own -----------------------------------------------------------------------------------


@task
def merge(stream: str) -> None:
    from waybill.interfaces.airflow.tasks import begin_task
    from waybill.tables.dedup.key_index import merge_index

    merge_index(begin_task(), stream)


# The task only reads, so a retry would have the same result: it has no retries, so that the alert is immediate.
@task(retries=0)
def check_window(stream: str) -> None:
    from waybill.interfaces.airflow.tasks import begin_task
    from waybill.tables.dedup.status import check_window

    check_window(begin_task(), stream)


def stream_dag(config: Config, name: str, dedup: Dedup) -> DAG:
    """Return the dedup DAG of one stream."""

    @dag(
        **stream_arguments(Stage.DEDUP, name, dedup, dedup.timeout, RETRIES),
        description=f"each message id once, in the tables of generation {config.stream(name).generation}",
        schedule=after_any([table_asset(config, config.stream(name))], dedup.schedule),
        params=PARAMS,
        doc_md=__doc__,
    )
    def build() -> None:
        sweep = SubmitStream(
            task_id="sweep",
            job="dedup",
            stream=name,
            config=config,
            execution_timeout=dedup.timeout,
            arguments=["--no-window-alert", *ARGUMENTS],
            pre_execute=check_sweep_range,
        )
        sweep >> merge.override(execution_timeout=dedup.timeout)(name) >> check_window(name)

    return build()


def build_all(config: Config) -> None:
    """Register a DAG for each group with streams, and for each stream with dedup that is in none."""
    for group, streams in config.streams_by_group(Stage.DEDUP).items():
        globals()[f"group__{group}"] = group_dag(config, group, streams)
    for name, stream in config.streams.items():
        if stream.dedup is not None and stream.dedup.has_own_dag:
            globals()[f"stream__{name}"] = stream_dag(config, name, stream.dedup)


build_all(load_valid_streams())
