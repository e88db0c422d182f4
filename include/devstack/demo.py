"""`make demo`: send real data through the whole system, and count it at the end.

336,776 flights, some of them sent twice, some unparsable messages and some tombstones go through Kafka and the archive
in S3 into an Iceberg table, and each of them once into its unique table. Airflow's scheduler runs the DAGs. Then
`waybill verify` counts the messages. At the end the audit holds a run with a renamed field (`devstack.demo_hold`).
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table

from devstack import flights
from devstack.airflow import AirflowClient, DagRun, RunState, TaskInstance
from devstack.demo_hold import RenamedField
from devstack.produce import create_topic, produce
from devstack.stack import Stack
from devstack.state import state_dir
from waybill.base.errors import StackError

STREAM = "flights"
TOPIC = "flights"
INGEST_DAG, PARTITION_DAG, DEDUP_DAG = "ingest", "partition", "dedup"
"""The DAGs of the group `default`. The demo runs them for its stream alone."""
PARTITIONS = 6
SENT_TWICE = round(0.006 * flights.FLIGHTS)
UNPARSABLE = 300
TOMBSTONES = 100

_RUN_SECONDS = 600.0
_QUIET_SECONDS = 5.0
_MAX_INGEST_RUNS = 10


@dataclass(frozen=True)
class Stage:
    """A step of the demo and its duration."""

    name: str
    messages: int
    seconds: float


@dataclass(frozen=True)
class Counts:
    """The figures of `waybill verify`, over the whole archive and the tables."""

    ok: bool
    archived: int
    rows: int
    quarantined: int
    waiting: int
    lost: int
    repeated: int


@dataclass(frozen=True)
class Unique:
    """The figures of `waybill dedup status`, over all demos."""

    rows: int
    dropped: int
    """Rows of messages that were sent before; they are in the duplicates table."""
    to_sweep: int
    """Rows that are not swept yet."""

    def is_right(self, before: int, rows: int) -> bool:
        """Return whether exactly the rows of messages that were sent twice were dropped.

        `before`: the number of messages of earlier demos, which sent the same flights. `rows`: the table's rows.
        """
        if self.to_sweep or self.rows + self.dropped != rows:
            return False
        return bool(before) or (self.dropped == SENT_TWICE and self.rows == flights.FLIGHTS + TOMBSTONES)


# --- progress ---------------------------------------------------------------------------------------------------------


class ShowProgress(Protocol):
    """Shows the progress of a stage. Cheap to call often."""

    def __call__(self, text: str, /) -> None: ...


@contextmanager
def stage(console: Console, title: str) -> Iterator[ShowProgress]:
    """Show `title` and the progress of the block; at the end its duration.

    Without a terminal a progress text is printed at most every five seconds, and only if it has changed.
    """
    start = time.monotonic()
    with _on_terminal(console, title) if console.is_terminal else _in_file(console, title) as show:
        yield show
    console.print(f"[green]✓[/] {title} [dim]({time.monotonic() - start:.1f} s)[/]", highlight=False)


@contextmanager
def _on_terminal(console: Console, title: str) -> Iterator[ShowProgress]:
    start = time.monotonic()
    with console.status(title) as status:

        def show(text: str) -> None:
            status.update(f"{title} [dim]· {text} · {time.monotonic() - start:.0f} s[/]")

        yield show


@contextmanager
def _in_file(console: Console, title: str) -> Iterator[ShowProgress]:
    console.print(f"… {title}", highlight=False)
    latest = ("", time.monotonic())

    def show(text: str) -> None:
        nonlocal latest
        now = time.monotonic()
        if text != latest[0] and now - latest[1] >= _QUIET_SECONDS:
            console.print(f"    {text}", highlight=False)
            latest = (text, now)

    yield show


# --- the demo ---------------------------------------------------------------------------------------------------------


class Demo:
    """The stages of the demo on a running stack with Airflow."""

    def __init__(self, stack: Stack, airflow: AirflowClient, console: Console) -> None:
        self._stack = stack
        self._airflow = airflow
        self._console = console
        self._stages: list[Stage] = []

    def run(self) -> bool:
        """Run all stages and print the tables. Return whether no message was lost or repeated."""
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
        with self._timed("hold", "audit: a renamed field is held, and a person decides", 0):
            is_held = RenamedField(self._stack, self._console, f"{before + produced}").play()
        with stage(self._console, "watch: the state of the demo, for Waybill's pages"):
            # Code 1: a promise is broken, such as that of the quarantine. That is what the pages show.
            self._waybill("watch", "--json", accept=(0, 1))
        self._print_result(before, produced, counts, unique)
        is_whole = counts.ok and counts.archived == before + produced == counts.rows + counts.quarantined
        return is_whole and is_held and unique.is_right(before, counts.rows)

    def _produce(self) -> int:
        total = flights.FLIGHTS + SENT_TWICE + UNPARSABLE + TOMBSTONES
        events = itertools.chain(
            flights.with_retries(flights.flight_events(), flights.FLIGHTS, SENT_TWICE),
            flights.unparsable_events(UNPARSABLE),
            flights.tombstones(TOMBSTONES),
        )
        title = f"produce: {total:,} messages to topic {TOPIC!r}, {PARTITIONS} partitions, five codecs"
        with self._timed("produce", title, total) as show:
            return produce(self._stack.bootstrap_servers, TOPIC, events, lambda done: show(f"{done:,} of {total:,}"))

    def _ingest(self, produced: int) -> None:
        """Run the DAG until the lag is 0: the budgets of its lanes limit what one run archives."""
        with self._timed("ingest", f"ingest: Airflow runs {INGEST_DAG}, Kafka → S3", produced) as show:
            for _ in range(_MAX_INGEST_RUNS):
                self._run_dag(INGEST_DAG, show)
                lag = sum(row["lag"] for row in self._offsets())
                if lag == 0:
                    return
                show(f"{lag:,} messages left")
        raise StackError(f"after {_MAX_INGEST_RUNS} runs of {INGEST_DAG} there is still a lag of {lag:,} messages")

    def _partition(self, produced: int) -> None:
        title = f"partition: Airflow runs {PARTITION_DAG}, S3 → Spark → Iceberg"
        with self._timed("partition", title, produced) as show:
            self._run_dag(PARTITION_DAG, show)

    def _dedup(self, produced: int) -> None:
        title = f"dedup: Airflow runs {DEDUP_DAG}, each flight once"
        with self._timed("dedup", title, produced) as show:
            self._run_dag(DEDUP_DAG, show)

    def _run_dag(self, dag_id: str, show: ShowProgress) -> None:
        def show_states(run: DagRun, tasks: list[TaskInstance]) -> None:
            states = Counter(task.state or "waiting" for task in tasks)
            show(f"{run.state}; tasks: " + ", ".join(f"{count} {state}" for state, count in sorted(states.items())))

        self._airflow.unpause(dag_id)
        try:
            run_id = self._airflow.trigger(dag_id, {"streams": [STREAM]})
            run = self._airflow.wait_for_run(dag_id, run_id, seconds=_RUN_SECONDS, on_progress=show_states)
        finally:
            self._airflow.pause(dag_id)  # scheduled runs would change the counts
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
        """Run a `waybill` command as a user does, and return the JSON that it prints."""
        done = subprocess.run(
            [sys.executable, "-m", "waybill.interfaces.cli", *arguments],
            env=os.environ | self._stack.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode not in accept:
            raise StackError(f"`waybill {' '.join(arguments)}` failed:\n{done.stderr.strip()}")
        return json.loads(done.stdout)

    @contextmanager
    def _timed(self, name: str, title: str, messages: int) -> Iterator[ShowProgress]:
        start = time.monotonic()
        with stage(self._console, title) as show:
            yield show
        self._stages.append(Stage(name, messages, time.monotonic() - start))

    def _print_result(self, before: int, produced: int, counts: Counts, unique: Unique) -> None:
        table = Table(title="The messages", title_justify="left")
        table.add_column("")
        table.add_column("messages", justify="right")
        if before:
            table.add_row("from earlier demos", f"{before:,}")
        table.add_row("produced", f"{produced:,}")
        table.add_row("  of these sent a second time", f"{SENT_TWICE:,}")
        table.add_row("archived", f"{counts.archived:,}")
        table.add_row("in the table", f"{counts.rows:,}")
        table.add_row("in quarantine", f"{counts.quarantined:,}")
        if counts.waiting:
            table.add_row("archived, not in a table yet", f"{counts.waiting:,}", style="red")
        table.add_row("lost", f"{counts.lost:,}", style="green" if counts.lost == 0 else "red")
        table.add_row("repeated", f"{counts.repeated:,}", style="green" if counts.repeated == 0 else "red")
        style = "green" if unique.is_right(before, counts.rows) else "red"
        table.add_row("dropped as duplicates", f"{unique.dropped:,}", style=style)
        table.add_row("in the unique table", f"{unique.rows:,}", style=style)
        self._console.print(table)
        times = Table(title="Durations", title_justify="left")
        for column in ("stage", "seconds", "messages/s"):
            times.add_column(column, justify="left" if column == "stage" else "right")
        for done in self._stages:
            rate = f"{done.messages / done.seconds:,.0f}" if done.messages else ""
            times.add_row(done.name, f"{done.seconds:.1f}", rate)
        self._console.print(times)


_NEXT = """\
Where to look next
  make up                      the same stack with its data, Airflow's UI and Waybill's pages
  source .waybill/env          then: waybill offsets · waybill ls flights · waybill verify · waybill dedup status
  docs/user-guide.md           declare a stream; read the table, the quarantine, the archive
  docs/protocol.md             why nothing is lost or repeated"""


def main(console: Console, on_progress: Callable[[str], None]) -> int:
    """Run the demo, and return the exit code.

    It uses the stack that `make up` started; without one it starts a stack, and stops it at the end. `on_progress` gets
    the progress of starting it.
    """
    directory = state_dir()
    running = Stack.attach(directory, on_progress=on_progress)
    if running is not None:
        console.print(f"Using the stack that runs in {directory}")
        return _run(running, console)
    with Stack.start(directory, airflow=True, on_progress=on_progress) as stack:
        code = _run(stack, console)
        console.print("Stopping the stack …")
    return code


def _run(stack: Stack, console: Console) -> int:
    stack.start_airflow()
    with stack.airflow.client() as airflow:
        intact = Demo(stack, airflow, console).run()
    console.print(_NEXT)
    return 0 if intact else 1
