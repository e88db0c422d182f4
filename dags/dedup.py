"""`dedup__<stream>`: each message id once. What is new in the stream's table goes to its unique table, by Spark.

A run follows each run of `partition__<stream>`, and the schedule of its own. Rows and how far the sweep came are
committed in one snapshot, so a retry or a run by hand starts where the unique table says and repeats nothing.

`merge` keeps up the index of keys, which is derived from the unique table. Then `check_window` looks at how far back
sweeps see: where the index's budget leaves less than `dedup.window` or `dedup.floor`, it fails, and says what to do.
"""

from datetime import timedelta

from airflow.sdk import DAG, AssetOrTimeSchedule, CronTriggerTimetable, Param, dag, task

from waybill.config import Config, Stream, load_config
from waybill.orchestration.spark_submit import WaybillSparkSubmit, check_sweep_range, table_asset

# JSON Schema's `format` makes the form's field, and refuses nothing where its library is missing.
INSTANT = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?(Z|[+-]\d{2}:\d{2})$"


def instant(title: str, description: str) -> Param:
    return Param(
        None, type=["null", "string"], format="date-time", pattern=INSTANT, title=title, description=description
    )


PARAMS = {
    "since": instant(
        "Since",
        "For the first sweep: leave out for good what the table had gained before: 2026-01-01T00:00:00Z. None: leave "
        "nothing out.",
    ),
    "until": instant("Until", "Sweep only what the table had gained by then: 2026-01-31T00:00:00Z. None: all of it."),
    "rebuild_index": Param(
        False,
        type="boolean",
        title="Build the index anew",
        description="First build the index of keys anew from the unique table. What a sweep decides is the same.",
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


# A second try would find nothing else: it only reads. So one alert comes of it, at once.
@task(retries=0)
def check_window(stream: str) -> None:
    from waybill.dedup.status import check_window
    from waybill.orchestration.tasks import begin_task

    check_window(begin_task(), stream)


def dedup_dag(config: Config, name: str, stream: Stream, cron: str) -> DAG:
    """The DAG of one stream."""

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
    for name, stream in config.streams.items():
        if stream.dedup is not None:
            globals()[f"dedup__{name}"] = dedup_dag(config, name, stream, stream.dedup.schedule)


build_all(load_config())
