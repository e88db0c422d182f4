"""What every benchmark here does the same way: rows, repeats, a fresh process for each case, a table, JSON.

A script lists its cases and calls `main`. Each case runs in a process of its own, so that peak memory is the case's own
and no case warms another's caches. What prepares a case (reading input, compiling) is not timed; it does count towards
peak memory.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

__all__ = [
    "Case",
    "Done",
    "Row",
    "argument_parser",
    "in_fresh_process",
    "main",
    "measure",
    "peak_rss_bytes",
    "show",
    "write_json",
]


class Done(NamedTuple):
    """What one run got through: messages, and the bytes that were read for them. `extra` goes into the JSON, too.

    `cpu_seconds` and `peak_rss_bytes` are those of processes that took part and go on living.
    """

    messages: int
    bytes: int
    extra: Mapping[str, float | str] = {}
    cpu_seconds: float = 0.0
    peak_rss_bytes: int = 0


Work = Callable[[], Done]


@dataclass(frozen=True)
class Case:
    """One line of the table: `name` is `waybill` or the rival, `case` the variant. `prepare` returns what is timed."""

    name: str
    case: str
    prepare: Callable[[argparse.Namespace], Work]


@dataclass(frozen=True)
class Row:
    """Medians over the repeats of wall and CPU seconds (children included), and the peak memory of the process."""

    name: str
    case: str
    messages: int
    bytes: int
    seconds: float
    cpu_seconds: float
    peak_rss_bytes: int
    extra: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def messages_per_cpu_second(self) -> float:
        return self.messages / self.cpu_seconds if self.cpu_seconds else 0.0

    def as_json(self) -> dict[str, object]:
        fields = dataclasses.asdict(self)
        return fields | fields.pop("extra")


def argument_parser(description: str) -> argparse.ArgumentParser:
    """The options every benchmark has; a script adds its own."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows there")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each case; medians are reported")
    parser.add_argument("--case", action="append", help="only cases of this name or variant; may be repeated")
    parser.add_argument("--only", nargs=2, help=argparse.SUPPRESS)  # one case, in this process: the row as JSON
    return parser


def main(
    title: str, cases: Sequence[Case], arguments: argparse.Namespace, *, baseline: str, passed_on: Sequence[str] = ()
) -> None:
    """Run the cases, print the table with each row's ratio to `baseline`'s, and write the JSON.

    `passed_on`: arguments that the processes of the cases need besides the script's own (a path to prepared input).
    """
    if arguments.only:
        case = next(case for case in cases if [case.name, case.case] == arguments.only)
        print(json.dumps(dataclasses.asdict(measure(case, arguments))))
        return
    chosen = [case for case in cases if not arguments.case or {case.name, case.case} & set(arguments.case)]
    rows = []
    for case in chosen:
        print(f"{case.name} {case.case} …", file=sys.stderr, flush=True)
        rows.append(in_fresh_process(case.name, case.case, [*sys.argv[1:], *passed_on]))
    show(title, rows, baseline=baseline)
    if arguments.json:
        write_json(rows, arguments.json)


def in_fresh_process(name: str, case: str, arguments: Sequence[str]) -> Row:
    """Run this script again for one case. Raises `CalledProcessError` when it fails; its stderr is shown."""
    command = [sys.executable, sys.argv[0], *arguments, "--only", name, case]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=1800)
    return Row(**json.loads(done.stdout.splitlines()[-1]))


def measure(case: Case, arguments: argparse.Namespace) -> Row:
    """Prepare, run once unmeasured, then `--repeats` times."""
    work = case.prepare(arguments)
    work()
    seconds, cpu_seconds = [], []
    for _ in range(arguments.repeats):
        cpu, wall = _cpu_seconds(), time.perf_counter()
        done = work()
        seconds.append(time.perf_counter() - wall)
        cpu_seconds.append(_cpu_seconds() - cpu + done.cpu_seconds)
    return Row(
        name=case.name,
        case=case.case,
        messages=done.messages,
        bytes=done.bytes,
        seconds=statistics.median(seconds),
        cpu_seconds=statistics.median(cpu_seconds),
        peak_rss_bytes=done.peak_rss_bytes or peak_rss_bytes(),
        extra=dict(done.extra),
    )


def show(title: str, rows: Sequence[Row], *, baseline: str) -> None:
    """Print the table. The last column: messages per CPU second, as a multiple of the baseline's in the same case."""
    table = Table(title=title, title_justify="left")
    for heading in (
        "case",
        "name",
        "messages/s",
        "messages/CPU s",
        "MB/s",
        "CPU s per 1 M",
        "peak MiB",
        f"× {baseline}",
    ):
        table.add_column(heading, justify="left" if heading in ("case", "name") else "right")
    by_case = {row.case: row for row in rows if row.name == baseline}
    for row in rows:
        base = by_case.get(row.case)
        ratio = row.messages_per_cpu_second / base.messages_per_cpu_second if base and base is not row else None
        table.add_row(
            row.case,
            row.name,
            f"{row.messages / row.seconds:,.0f}",
            f"{row.messages_per_cpu_second:,.0f}",
            f"{row.bytes / row.seconds / 1e6:,.0f}",
            f"{row.cpu_seconds / row.messages * 1e6:.2f}",
            f"{row.peak_rss_bytes / (1 << 20):,.0f}",
            f"{ratio:.1f}" if ratio else "",
        )
    # Wide enough also where the output is a file.
    Console(width=max(110, Console().width)).print(table)


def write_json(rows: Sequence[Row], path: Path) -> None:
    path.write_text(json.dumps([row.as_json() for row in rows], indent=1) + "\n")


def _cpu_seconds() -> float:
    """Of this process and of its children that have ended. `os.times()` would do, but counts in steps of 10 ms."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def peak_rss_bytes() -> int:
    """Of this process, plus its largest child's.

    Not `ru_maxrss` for the process itself: that starts from what the parent held when it forked.
    """
    status = Path("/proc/self/status").read_text()
    own_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
    return (own_kib + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) << 10
