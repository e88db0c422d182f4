"""The end of `make demo`: a producer renames a field, the audit holds the run, and a person decides.

It uses a small stream of its own, with a config in the stack's directory: the fares of 2,000 bookings, and 2,000 more
whose producer calls the field `fare_usd` instead of `fare`. The steps are those of the DAGs, without Airflow.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from devstack.flights import FlightEvent
from devstack.produce import create_topic, produce
from devstack.stack import Stack
from waybill.base.errors import StackError

_STREAM = "bookings"
_MESSAGES = 2_000
_FIRST_MS = 1_700_000_000_000
_SECONDS = 180.0

_CONFIG = """\
version: 1
storage: {{bucket: waybill, prefix: demo-{run}}}
zookeeper: {{root: demo-{run}}}
streams:
  bookings:
    topics: [bookings-{run}]
    upload: {{max_age: 0s}}
    parser:
      event_time: {{field: at, format: epoch_ms}}
      message_id: id
    columns:
      fare: {{type: double, field: {field}}}
    quality:
      checks: {{column_became_null: critical}}
    table: demo.bookings_{run}
"""

_INGEST = """\
from waybill.config.models import load_config
from waybill.archive.ingest.lane import run_lane
from waybill.archive.ingest.lane_plan import plan_run
config = load_config()
for lane in plan_run(config, None, ["bookings"], with_stopped=True).lanes:
    run_lane(config, lane)
"""


class RenamedField:
    """Plays the story once, and shows what it does."""

    def __init__(self, stack: Stack, console: Console, run: str) -> None:
        """`run`: keeps topic, table and archive apart from those of earlier demos; letters and digits."""
        self._stack = stack
        self._console = console
        self._run = run
        self._directory = stack.state_dir / "demo-hold"
        self._directory.mkdir(parents=True, exist_ok=True)
        self._config = self._directory / "streams.yaml"

    def play(self) -> bool:
        """Play all steps and return whether readers saw at each step what they should."""
        topic = f"bookings-{self._run}"
        create_topic(self._stack.bootstrap_servers, topic, 1)
        self._write_config("fare")
        self._produce(topic, "fare", 0)
        self._python("-c", _INGEST)
        self._partition()
        before = self._rows()
        self._produce(topic, "fare_usd", _MESSAGES)
        self._python("-c", _INGEST)
        held = self._partition(code=1)
        during = self._rows()
        self._show(f"a producer renames a field: the run is held, readers still see {during:,} rows", _first_line(held))
        self._write_config("fare_usd")
        rejected = self._waybill("quality", "reject", _STREAM, "--reason", "the field has a new name").stdout
        self._partition()
        after = self._rows()
        self._show(f"the config is corrected, the run rejected; the next run publishes {after:,} rows", rejected)
        return (before, during, after) == (_MESSAGES, _MESSAGES, 2 * _MESSAGES)

    # --- steps ---

    def _write_config(self, field: str) -> None:
        self._config.write_text(_CONFIG.format(run=self._run, field=field))

    def _produce(self, topic: str, field: str, first: int) -> None:
        produce(self._stack.bootstrap_servers, topic, _bookings(field, first), lambda _: None)

    def _partition(self, code: int = 0) -> str:
        """Run the Spark job, and return what it printed."""
        submit = Path(sys.executable).with_name("spark-submit")
        job = Path(__file__).parents[2] / "spark_jobs" / "partition.py"
        done = self._call([str(submit), "--master", "local[2]", str(job), "--stream", _STREAM], code)
        return done.stdout + done.stderr

    def _rows(self) -> int:
        """Return the number of rows that readers of the table see, all with a fare."""
        [report] = json.loads(self._waybill("verify", _STREAM, "--json", code=None).stdout)
        return int(report["figures"]["rows"])

    # --- processes ---

    def _waybill(self, *arguments: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        return self._python("-m", "waybill.interfaces.cli", *arguments, code=code)

    def _python(self, *arguments: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        return self._call([sys.executable, *arguments], code)

    def _call(self, command: Sequence[str], code: int | None) -> subprocess.CompletedProcess[str]:
        environment: dict[str, Any] = {**os.environ, **self._stack.environment(), "WAYBILL_CONFIG": str(self._config)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=_SECONDS)
        if code is not None and done.returncode != code:
            raise StackError(f"`{' '.join(command)}` ended with {done.returncode}:\n{done.stderr.strip()[-2000:]}")
        return done

    def _show(self, title: str, detail: str) -> None:
        self._console.print(f"[green]✓[/] {title}", highlight=False)
        self._console.print(f"  [dim]{detail.strip()}[/]", highlight=False)


def _bookings(field: str, first: int) -> Iterator[FlightEvent]:
    for n in range(first, first + _MESSAGES):
        value = {"id": f"booking-{n}", "at": _FIRST_MS + n * 1000, field: 99.0 + n % 400}
        yield FlightEvent(str(n).encode(), json.dumps(value).encode(), _FIRST_MS + n * 1000, [])


def _first_line(log: str) -> str:
    """Return the message about the hold in a log."""
    lines = [line for line in log.splitlines() if "are held, not published" in line]
    return lines[0].partition("PublicationHeld: ")[2] if lines else log[-500:]
