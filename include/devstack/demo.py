"""`make demo`: the whole path on real input, counted.

336,776 flights, some of them sent twice, some unparsable messages and some tombstones go through Kafka, the archive in
S3, Airflow and Spark into an Iceberg table, and each of them once into a second one. Airflow's scheduler runs the DAGs;
`waybill verify` then counts what they did.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from devstack import flights
from devstack.airflow import AirflowClient, DagRun, RunState, TaskInstance
from devstack.produce import create_topic, produce
from devstack.progress import Say, stage
from devstack.stack import Stack, state_dir
from waybill.errors import StackError

__all__ = ["Demo", "main"]

STREAM = "flights"
TOPIC = "flights"
INGEST_DAG = f"ingest__{STREAM}"
PARTITION_DAG = f"partition__{STREAM}"
DEDUP_DAG = f"dedup__{STREAM}"
PARTITIONS = 6
SENT_TWICE = round(0.006 * flights.FLIGHTS)
UNPARSABLE = 300
TOMBSTONES = 100

_RUN_SECONDS = 600.0
_MOST_INGEST_RUNS = 10


@dataclass(frozen=True)
class Stage:
    """How long one step took."""

    name: str
    messages: int
    seconds: float


@dataclass(frozen=True)
class Counts:
    """What `waybill verify` counted, over all that is in the archive and the tables."""

    ok: bool
    archived: int
    rows: int
    quarantined: int
    waiting: int
    lost: int
    repeated: int


@dataclass(frozen=True)
class Unique:
    """What is in the unique table, and what is not, over all demos."""

    rows: int
    dropped: int
    """Rows of messages that were sent before."""
    to_sweep: int
    """Rows that no sweep has seen yet."""

    def is_right(self, before: int, rows: int) -> bool:
        """Whether what was sent twice, and nothing else, was dropped of the table's rows.

        `before`: how many messages are of earlier demos, which sent the same flights.
        """
        if self.to_sweep or self.rows + self.dropped != rows:
            return False
        return bool(before) or (self.dropped == SENT_TWICE and self.rows == flights.FLIGHTS + TOMBSTONES)


class Demo:
    """The stages of the demo on a running stack with Airflow."""

    def __init__(self, stack: Stack, airflow: AirflowClient, console: Console) -> None:
        self._stack = stack
        self._airflow = airflow
        self._console = console
        self._stages: list[Stage] = []

    def run(self) -> bool:
        """All stages, and the closing table. Returns whether nothing was lost, and nothing is there twice."""
        with stage(self._console, "Airflow reads the DAGs"):
            for dag_id in (INGEST_DAG, PARTITION_DAG, DEDUP_DAG):
                self._airflow.wait_for_dag(dag_id)
        create_topic(self._stack.bootstrap_servers, TOPIC, PARTITIONS)
        before = sum(row["end_offset"] for row in self._offsets())
        produced = self._produce()
        self._ingest(produced)
        self._partition(produced)
        self._dedup(produced)
        counts = self._verify()
        unique = self._unique()
        self._print_result(before, produced, counts, unique)
        is_whole = counts.ok and counts.archived == before + produced == counts.rows + counts.quarantined
        return is_whole and unique.is_right(before, counts.rows)

    def _produce(self) -> int:
        total = flights.FLIGHTS + SENT_TWICE + UNPARSABLE + TOMBSTONES
        events = itertools.chain(
            flights.with_retries(flights.flight_events(), flights.FLIGHTS, SENT_TWICE),
            flights.unparsable_events(UNPARSABLE),
            flights.tombstones(TOMBSTONES),
        )
        title = f"produce: {total:,} messages to topic {TOPIC!r}, {PARTITIONS} partitions, five codecs"
        with self._timed("produce", title, total) as say:
            return produce(self._stack.bootstrap_servers, TOPIC, events, lambda done: say(f"{done:,} of {total:,}"))

    def _ingest(self, produced: int) -> None:
        """Run the DAG until nothing is left: one run takes what its lanes' budgets allow."""
        with self._timed("ingest", f"ingest: Airflow runs {INGEST_DAG}, Kafka → S3", produced) as say:
            for _ in range(_MOST_INGEST_RUNS):
                self._run_dag(INGEST_DAG, say)
                lag = sum(row["lag"] for row in self._offsets())
                if lag == 0:
                    return
                say(f"{lag:,} messages to go")
        raise StackError(f"after {_MOST_INGEST_RUNS} runs of {INGEST_DAG} there is still a lag of {lag:,} messages")

    def _partition(self, produced: int) -> None:
        title = f"partition: Airflow runs {PARTITION_DAG}, S3 → Spark → Iceberg"
        with self._timed("partition", title, produced) as say:
            self._run_dag(PARTITION_DAG, say)

    def _dedup(self, produced: int) -> None:
        title = f"dedup: Airflow runs {DEDUP_DAG}, each flight once"
        with self._timed("dedup", title, produced) as say:
            self._run_dag(DEDUP_DAG, say)

    def _run_dag(self, dag_id: str, say: Say) -> None:
        def show(run: DagRun, tasks: list[TaskInstance]) -> None:
            states = Counter(task.state or "waiting" for task in tasks)
            say(f"{run.state}; tasks: " + ", ".join(f"{count} {state}" for state, count in sorted(states.items())))

        self._airflow.unpause(dag_id)
        try:
            run_id = self._airflow.trigger(dag_id)
            run = self._airflow.wait_for_run(dag_id, run_id, seconds=_RUN_SECONDS, on_progress=show)
        finally:
            self._airflow.pause(dag_id)  # the demo counts its own runs; the schedule would add others
        if run.state is not RunState.SUCCESS:
            raise StackError(self._airflow.failure_report(dag_id, run_id))

    def _verify(self) -> Counts:
        with self._timed("verify", "verify: each offset exactly once, in the table or in quarantine", 0):
            [report] = self._waybill("verify", STREAM, "--json", accept=(0, 1))
        for fault in report["faults"]:
            self._console.print(f"[red]{fault}[/]")
        figures = report["figures"]
        return Counts(
            ok=report["sound"],
            archived=figures["messages"],
            rows=figures["rows"],
            quarantined=figures["quarantine"],
            waiting=figures["waiting"],
            lost=figures["lost"],
            repeated=figures["repeated"],
        )

    def _unique(self) -> Unique:
        [status] = self._waybill("dedup", "status", STREAM, "--json")
        return Unique(rows=status["rows"], dropped=status["duplicates"], to_sweep=status["behind"]["rows"])

    def _offsets(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._waybill("offsets", "--stream", STREAM, "--json")
        return rows

    def _waybill(self, *arguments: str, accept: tuple[int, ...] = (0,)) -> Any:
        """What the command prints as JSON, run as a user would run it."""
        done = subprocess.run(
            [sys.executable, "-m", "waybill.cli", *arguments],
            env=os.environ | self._stack.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode not in accept:
            raise StackError(f"`waybill {' '.join(arguments)}` failed:\n{done.stderr.strip()}")
        return json.loads(done.stdout)

    @contextmanager
    def _timed(self, name: str, title: str, messages: int) -> Iterator[Say]:
        start = time.monotonic()
        with stage(self._console, title) as say:
            yield say
        self._stages.append(Stage(name, messages, time.monotonic() - start))

    def _print_result(self, before: int, produced: int, counts: Counts, unique: Unique) -> None:
        table = Table(title="What became of the messages", title_justify="left")
        table.add_column("")
        table.add_column("messages", justify="right")
        if before:
            table.add_row("there from earlier demos", f"{before:,}")
        table.add_row("produced", f"{produced:,}")
        table.add_row("  of these a second time", f"{SENT_TWICE:,}")
        table.add_row("archived", f"{counts.archived:,}")
        table.add_row("in the table", f"{counts.rows:,}")
        table.add_row("in quarantine", f"{counts.quarantined:,}")
        if counts.waiting:
            table.add_row("archived, not in a table yet", f"{counts.waiting:,}", style="red")
        table.add_row("lost", f"{counts.lost:,}", style="green" if counts.lost == 0 else "red")
        table.add_row("repeated", f"{counts.repeated:,}", style="green" if counts.repeated == 0 else "red")
        style = "green" if unique.is_right(before, counts.rows) else "red"
        table.add_row("sent before, and dropped", f"{unique.dropped:,}", style=style)
        table.add_row("in the unique table", f"{unique.rows:,}", style=style)
        self._console.print(table)
        times = Table(title="How long it took", title_justify="left")
        for column in ("stage", "seconds", "messages/s"):
            times.add_column(column, justify="left" if column == "stage" else "right")
        for done in self._stages:
            rate = f"{done.messages / done.seconds:,.0f}" if done.messages else ""
            times.add_row(done.name, f"{done.seconds:.1f}", rate)
        self._console.print(times)


_NEXT = """\
Where to look next
  make up                      the same stack, with what is in it now, and Airflow's UI
  source .waybill/env          then: waybill offsets · waybill ls flights · waybill verify · waybill dedup status
  docs/user-guide.md           declare a stream; read the table, the quarantine, the archive
  docs/protocol.md             why nothing is lost or repeated"""


def main(console: Console, say: Say) -> int:
    """Run the demo on the stack that `make up` started, else on one of its own; `say` gets its progress.

    Returns the exit code.
    """
    directory = state_dir()
    running = Stack.attach(directory, on_progress=say)
    if running is not None:
        console.print(f"Using the stack that runs in {directory}")
        return _run(running, console)
    with Stack.start(directory, airflow=True, on_progress=say) as stack:
        code = _run(stack, console)
        console.print("Stopping what was started …")
    return code


def _run(stack: Stack, console: Console) -> int:
    stack.start_airflow()
    with stack.airflow.client() as airflow:
        intact = Demo(stack, airflow, console).run()
    console.print(_NEXT)
    return 0 if intact else 1
