"""`dedup__<stream>`: copy new rows of the stream's table to its unique table, each message id once, with Spark.

A run starts after each run of `partition__<stream>`, and by its own schedule. One snapshot of the unique table contains
the rows and the position of the sweep. So a retry or a run by hand continues at that position and repeats nothing.

`merge` merges small sorted runs of the key index, which is derived from the unique table. `check_window` fails if the
budget of the key index makes the window too short (`dedup.window`, `dedup.floor`); its message names the remedy.
"""

from datetime import timedelta

from airflow.sdk import DAG, AssetOrTimeSchedule, CronTriggerTimetable, Param, dag, task

from waybill.config import Config, Stream, load_config
from waybill.orchestration.spark_submit import WaybillSparkSubmit, check_sweep_range, table_asset

# JSON Schema's `format` only chooses the form's field: without an optional library it checks nothing. `pattern` does.
INSTANT = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?(Z|[+-]\d{2}:\d{2})$"


def instant(title: str, description: str) -> Param:
    """Return a parameter that is a time with its time zone, or None."""
    return Param(
        None, type=["null", "string"], format="date-time", pattern=INSTANT, title=title, description=description
    )


PARAMS = {
    "since": instant(
        "Since",
        "For the first sweep: leave out, for good, the rows that were committed before this time, such as "
        "2026-01-01T00:00:00Z. None: leave no row out.",
    ),
    "until": instant(
        "Until", "Sweep only rows that were committed by this time, such as 2026-01-31T00:00:00Z. None: all rows."
    ),
    "rebuild_index": Param(
        False,
        type="boolean",
        title="Rebuild the key index",
        description="First rebuild the key index from the unique table. The result of a sweep does not change.",
    ),
}

ARGUMENTS = [
    "--no-window-alert",
    "{{ '--since=' ~ params.since if params.since else '' }}",
    "{{ '--until=' ~ params.until if params.until else '' }}",
    "{{ '--rebuild-index' if params.rebuild_index else '' }}",
]


@task
def merge(stream: str) -> None:
    from waybill.dedup.key_index import merge_index
    from waybill.orchestration.tasks import begin_task

    merge_index(begin_task(), stream)


# It only reads, so a retry would find the same: it fails, and alerts, once and at once.
@task(retries=0)
def check_window(stream: str) -> None:
    from waybill.dedup.status import check_window
    from waybill.orchestration.tasks import begin_task

    check_window(begin_task(), stream)


def dedup_dag(config: Config, name: str, stream: Stream, cron: str) -> DAG:
    """Return the dedup DAG of one stream."""

    @dag(
        dag_id=f"dedup__{name}",
        description=f"each message id once, in the tables of generation {stream.generation}",
        schedule=AssetOrTimeSchedule(
            assets=[table_asset(config, stream)], timetable=CronTriggerTimetable(cron, timezone="UTC")
        ),
        catchup=False,
        max_active_runs=1,
        params=PARAMS,
        default_args={"owner": "waybill", "retries": 2, "retry_delay": timedelta(minutes=1)},
        tags=["waybill", "dedup", name],
        doc_md=__doc__,
    )
    def build() -> None:
        sweep = WaybillSparkSubmit(
            task_id="sweep", job="dedup", stream=name, config=config, arguments=ARGUMENTS, pre_execute=check_sweep_range
        )
        sweep >> merge(name) >> check_window(name)

    return build()


def build_all(config: Config) -> None:
    """Register a DAG for each stream that has dedup."""
    for name, stream in config.streams.items():
        if stream.dedup is not None:
            globals()[f"dedup__{name}"] = dedup_dag(config, name, stream, stream.dedup.schedule)


build_all(load_config())
