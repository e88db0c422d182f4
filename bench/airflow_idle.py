"""The CPU seconds per minute of the local stack while no DAG runs, by server, with one set of Airflow's settings each.

    python bench/airflow_idle.py [--seconds N] [--case NAME] [--streams N] [--json FILE]

The script starts the whole stack once. For each case it starts Airflow with the settings of the stack, changed as the
case says, waits until all DAG files are parsed, and then reads the CPU time of each server and of all its processes,
living and ended, at the beginning and at the end of `--seconds`. All DAGs are paused, as they are at first.

`all` is the sum of a case. `--case` selects cases; without it all are measured, one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from devstack import Stack

_SETTLE_SECONDS = 40.0
"""Every DAG file was parsed, and the work of the start has ended."""

_BEFORE = {
    "DAG_PROCESSOR__REFRESH_INTERVAL": "10",
    "DAG_PROCESSOR__BUNDLE_REFRESH_CHECK_INTERVAL": "2",
    "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "15",
    "SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "2",
}
"""The settings of the local stack before this was measured (docs/decisions/0018)."""

CASES: dict[str, dict[str, str | None]] = {
    "before": dict(_BEFORE),
    "file-interval-30": _BEFORE | {"DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "30"},
    "file-interval-60": _BEFORE | {"DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "60"},
    "file-interval-300": _BEFORE | {"DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "300"},
    "no-stability-check": _BEFORE | {"DAG_PROCESSOR__DAG_VERSION_INFLATION_CHECK_LEVEL": "off"},
    "heartbeat-10": _BEFORE | {"SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "10", "SCHEDULER__JOB_HEARTBEAT_SEC": "10"},
    "idle-sleep-2": _BEFORE | {"SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "2"},
    "no-triggerer": _BEFORE | {"WITHOUT": "triggerer"},
    "stack": {},
}
"""Settings as SECTION__KEY, in addition to the stack's own."""


@dataclass(frozen=True)
class Row:
    """The figures of one server in one case."""

    case: str
    server: str
    cpu_seconds_per_minute: float


def tuned(stack: Stack, settings: Mapping[str, str | None]) -> None:
    """Let the stack start Airflow with these settings."""
    from devstack.airflow import Airflow

    @dataclass(frozen=True)
    class Tuned(Airflow):
        settings: Mapping[str, str | None] = field(default_factory=dict)

        def environment(self) -> dict[str, str]:
            own = {f"AIRFLOW__{key}": value for key, value in self.settings.items() if key != "WITHOUT" and value}
            return super().environment() | own

        def specs(self, logs: Path):  # type: ignore[no-untyped-def]
            without = self.settings.get("WITHOUT")
            return tuple(spec for spec in super().specs(logs) if spec.name != f"airflow-{without}")

        def why_not_ready(self) -> str | None:
            reason = super().why_not_ready()
            return None if reason and reason.endswith(f"yet: {self.settings.get('WITHOUT')}") else reason

    old = {each.name: getattr(stack.airflow, each.name) for each in fields(Airflow) if each.init}
    stack.airflow = Tuned(**old, settings=settings)


def cpu_by_server(stack: Stack) -> dict[str, float]:
    """Return the CPU seconds of each server so far, with those of the processes that it started.

    A process that was waited for counts in its parent's `children_…`, so the sum over the living ones is complete.
    """
    import psutil

    found: dict[str, float] = {}
    for server in stack.status().servers:
        if not server.running:
            continue
        total = 0.0
        with suppress(psutil.Error):
            root = psutil.Process(server.pid)
            for process in [root, *root.children(recursive=True)]:
                with suppress(psutil.Error):
                    times = process.cpu_times()
                    total += times.user + times.system + times.children_user + times.children_system
        found[server.name] = total
    return found


def write_config(path: Path, streams: int) -> Path:
    """Write a config of many streams, each with one topic that does not exist."""
    import yaml

    stream = {"parser": {"event_time": {"field": "at"}}}
    document = {
        "version": 1,
        "storage": {"bucket": "waybill"},
        "streams": {f"s{n}": {**stream, "topics": [f"t{n}"], "table": f"idle.t{n}"} for n in range(streams)},
    }
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


def measure(stack: Stack, case: str, config: Path, seconds: float) -> list[Row]:
    tuned(stack, CASES[case])
    stack.start_airflow({"WAYBILL_CONFIG": str(config)})
    time.sleep(_SETTLE_SECONDS)
    before, start = cpu_by_server(stack), time.monotonic()
    time.sleep(seconds)
    after, minutes = cpu_by_server(stack), (time.monotonic() - start) / 60
    stack.stop_airflow()
    rows = [Row(case, name, (after[name] - before[name]) / minutes) for name in after if name in before]
    return [*rows, Row(case, "all", sum(row.cpu_seconds_per_minute for row in rows))]


def show(rows: list[Row]) -> None:
    cases, servers = list(dict.fromkeys(row.case for row in rows)), list(dict.fromkeys(row.server for row in rows))
    found = {(row.case, row.server): row.cpu_seconds_per_minute for row in rows}
    table = Table(title="CPU seconds per minute, idle", title_justify="left")
    table.add_column("case")
    for server in servers:
        table.add_column(server.removeprefix("airflow-"), justify="right")
    for case in cases:
        table.add_row(case, *(f"{found[case, s]:.2f}" if (case, s) in found else "" for s in servers))
    Console(width=max(160, Console().width)).print(table)


def main() -> None:
    from devstack import Stack

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE")
    parser.add_argument("--seconds", type=float, default=120.0, help="how long each case is measured")
    parser.add_argument("--case", action="append", choices=CASES, help="only this case; may be repeated")
    parser.add_argument("--streams", type=int, default=1, help="the number of streams in the config")
    arguments = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="waybill-bench-") as folder:
        config = write_config(Path(folder) / "streams.yaml", arguments.streams)
        os.environ["WAYBILL_CONFIG"] = str(config)
        with Stack.start(Path(folder) / "stack", on_progress=lambda line: print(line, file=sys.stderr)) as stack:
            for case in arguments.case or CASES:
                print(f"{case} …", file=sys.stderr, flush=True)
                rows += measure(stack, case, config, arguments.seconds)
                show(rows)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
