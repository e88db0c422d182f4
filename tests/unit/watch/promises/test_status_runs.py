"""Which DAG run has made a commit."""

from __future__ import annotations

from waybill.watch.promises.airflow_api import DagRunSpan
from waybill.watch.promises.status import RunStatus, StreamStatus
from waybill.watch.promises.status_runs import with_dag_runs

MINUTE = 60_000


def test_a_commit_belongs_to_the_run_of_its_dag_that_was_at_work() -> None:
    stream = StreamStatus(
        "flights",
        "a.flights",
        1,
        "kafka",
        {"partition": "partition_group__a", "dedup": "dedup__flights"},
        runs=(
            RunStatus("partition", 130 * MINUTE, 10),
            RunStatus("dedup", 135 * MINUTE, 10),
            RunStatus("partition", 70 * MINUTE, 10),
            RunStatus("partition", 10 * MINUTE, 10, run="known before"),
        ),
        planned_ms=190 * MINUTE,
    )
    spans = (
        DagRunSpan("partition_group__a", "at work", 189 * MINUTE, None),
        DagRunSpan("partition_group__a", "third", 125 * MINUTE, 140 * MINUTE),
        DagRunSpan("partition_group__b", "of another group", 125 * MINUTE, 140 * MINUTE),
        DagRunSpan("dedup__flights", "sweep", 135 * MINUTE + 20_000, 136 * MINUTE),
        DagRunSpan("partition_group__a", "first", 5 * MINUTE, 11 * MINUTE),
    )
    found = with_dag_runs(stream, spans)
    assert [run.run for run in found.runs] == ["third", "sweep", "", "known before"]
    assert found.planned_run == "at work"
