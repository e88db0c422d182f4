"""Measure cases and show their figures: what all scripts of bench/ share.

A script lists its cases and calls `run_cases`. Each case runs in a process of its own (the same script, with
`--only NAME CASE`), so that its peak memory is its own and no case warms the caches of another. Preparing a case
(reading input, compiling) is not timed, but it counts towards the peak memory.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Self

from rich.console import Console
from rich.table import Table

# psutil is imported where it is used: bench/ingest.py measures the start-up of processes that do not need it.

MIB = 1 << 20
_CASE_TIMEOUT_SECONDS = 3600
_SAMPLE_SECONDS = 0.25
_REAP_SECONDS = 20.0


@dataclass(frozen=True)
class Sample:
    """The figures of one repeat: messages, and the bytes that were read for them. `extra` goes into the JSON.

    `measure` fills in seconds, CPU seconds and peak memory where the case has not measured them itself.
    """

    messages: int
    bytes: int
    extra: Mapping[str, float | str] = field(default_factory=dict)
    seconds: float | None = None
    cpu_seconds: float | None = None
    peak_rss_bytes: int | None = None


Work = Callable[[], Sample]


@dataclass(frozen=True)
class Case:
    """One line of a table: `name` is `waybill` or an alternative, `case` the variant of the input.

    `prepare` takes the variant and the script's arguments, and returns the function to measure. `repeats` overrides
    the option `--repeats`.
    """

    name: str
    case: str
    prepare: Callable[[str, argparse.Namespace], Work]
    warm_up: bool = True
    repeats: int | None = None


@dataclass(frozen=True)
class Row:
    """The medians of a case's samples, and the largest peak."""

    name: str
    case: str
    messages: int
    bytes: int
    seconds: float
    cpu_seconds: float
    peak_rss_bytes: int
    extra: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def messages_per_second(self) -> float:
        return self.messages / self.seconds

    @property
    def messages_per_cpu_second(self) -> float:
        return self.messages / self.cpu_seconds if self.cpu_seconds else 0.0


def argument_parser(doc: str | None, *, repeats: int = 5) -> argparse.ArgumentParser:
    """Return a parser of the options that every script has; `doc` is the script's docstring."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE")
    parser.add_argument("--repeats", type=int, default=repeats, help="repeats of each case; the table shows medians")
    parser.add_argument("--case", action="append", help="only cases of this name or variant; may be repeated")
    parser.add_argument("--only", nargs=2, metavar=("NAME", "CASE"), help="run one case here; print its row as JSON")
    return parser


# --- running cases ----------------------------------------------------------------------------------------------------


def run_cases(cases: Sequence[Case], arguments: argparse.Namespace, *options: str) -> list[Row]:
    """Run each case that `--case` selects in a process of its own, with these options added to the command line."""
    rows = []
    for case in cases:
        if arguments.case and not {case.name, case.case} & set(arguments.case):
            continue
        print(f"{case.name} {case.case} …", file=sys.stderr, flush=True)
        command = [sys.executable, sys.argv[0], *sys.argv[1:], *options, "--only", case.name, case.case]
        process = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=_CASE_TIMEOUT_SECONDS)
        rows.append(Row(**json.loads(process.stdout.splitlines()[-1])))
    return rows


def run_only_case(cases: Sequence[Case], arguments: argparse.Namespace) -> None:
    """Measure the case that `--only` names in this process, and print its row as JSON."""
    case = next(case for case in cases if [case.name, case.case] == arguments.only)
    print(json.dumps(asdict(measure(case, arguments))))


def measure(case: Case, arguments: argparse.Namespace) -> Row:
    """Prepare the case, run it once unmeasured if it has a warm-up, then run and measure each repeat."""
    work = case.prepare(case.case, arguments)
    if case.warm_up:
        work()
    samples = [_measure_once(work) for _ in range(case.repeats or arguments.repeats)]

    def median(name: str) -> float:
        return statistics.median(getattr(sample, name) for sample in samples)

    extra = {
        name: value if isinstance(value, str) else statistics.median(sample.extra[name] for sample in samples)
        for name, value in samples[-1].extra.items()
    }
    peak = max(sample.peak_rss_bytes or 0 for sample in samples)
    count, size = samples[-1].messages, int(median("bytes"))
    return Row(case.name, case.case, count, size, median("seconds"), median("cpu_seconds"), peak, extra)


def _measure_once(work: Work) -> Sample:
    cpu, start = cpu_seconds(), time.perf_counter()
    sample = work()
    seconds, cpu = time.perf_counter() - start, cpu_seconds() - cpu
    return replace(
        sample,
        seconds=seconds if sample.seconds is None else sample.seconds,
        cpu_seconds=cpu if sample.cpu_seconds is None else sample.cpu_seconds,
        peak_rss_bytes=sample.peak_rss_bytes or peak_rss_bytes(),
    )


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and its ended children. `os.times()` has a resolution of only 10 ms."""
    return time.process_time() + _children_cpu_seconds()


def _children_cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def peak_rss_bytes() -> int:
    """Return the peak memory of this process plus that of its largest ended child.

    The own peak is not `ru_maxrss`, which starts from the memory of the parent at the fork.
    """
    status = Path("/proc/self/status").read_text()
    own_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
    return (own_kib + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) << 10


# --- commands that start many processes -------------------------------------------------------------------------------


class CommandCost(NamedTuple):
    """The cost of a command and of all processes that it started."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int


def run_command(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_seconds: float = 900
) -> CommandCost:
    """Run a command to its end and return its cost. This process must have no other children.

    spark-submit is a shell that becomes a JVM, which starts a Python driver, a daemon and workers, and not every parent
    waits for its children. So this process adopts orphans and waits for all of them. PySpark's daemon ignores SIGCHLD,
    so the kernel drops the CPU seconds of its workers; these are sampled as well, and the larger of both sums counts.

    Raises `RuntimeError` with the end of the command's output when it fails.
    """
    from devstack.processes import become_subreaper

    become_subreaper()
    cpu, start = _children_cpu_seconds(), time.perf_counter()
    process = subprocess.Popen(
        command, env={**os.environ, **(env or {})}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        with ProcessTreeSampler() as sampler:
            output, _ = process.communicate(timeout=timeout_seconds)
        seconds = time.perf_counter() - start
    finally:
        _reap_descendants()
    if process.returncode:
        raise RuntimeError(f"{command[:3]} … ended with exit code {process.returncode}:\n{output[-6000:]}")
    cpu = max(_children_cpu_seconds() - cpu, sum(sampler.cpu_seconds.values()))
    return CommandCost(seconds, cpu, sampler.peak_bytes)


def _reap_descendants() -> None:
    """Wait for every descendant to end; kill those that still run after `_REAP_SECONDS`."""
    from devstack.processes import descendants

    deadline = time.monotonic() + _REAP_SECONDS
    with suppress(ChildProcessError):  # raised by `waitpid` when no child is left
        while True:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
            if time.monotonic() > deadline:
                for process in descendants():
                    process.kill()
            time.sleep(0.02)


class ProcessTreeSampler(threading.Thread):
    """Samples memory and CPU seconds of all descendants of this process within a `with` block.

    Memory is each process's proportional share (PSS), so that pages shared after a fork count once.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_bytes = 0
        self.cpu_seconds: dict[tuple[int, float], float] = {}
        """The latest value for each process, by pid and start time."""
        self._stop_requested = threading.Event()

    def run(self) -> None:
        import psutil

        own = psutil.Process()
        while not self._stop_requested.wait(_SAMPLE_SECONDS):
            total_bytes = 0
            for process in own.children(recursive=True):
                with suppress(psutil.Error):  # the process has ended
                    times = process.cpu_times()
                    self.cpu_seconds[process.pid, process.create_time()] = times.user + times.system
                    total_bytes += process.memory_full_info().pss
            self.peak_bytes = max(self.peak_bytes, total_bytes)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_requested.set()
        self.join()


# --- output -----------------------------------------------------------------------------------------------------------


def print_table(title: str, rows: Sequence[Row], columns: Mapping[str, Callable[[Row], str]]) -> None:
    """Print a line for each row; a column is a heading and the function that returns the cell's text."""
    table = Table(title=title, title_justify="left")
    for heading in columns:
        table.add_column(heading, justify="left" if heading in ("case", "name") else "right")
    for row in rows:
        table.add_row(*(text(row) for text in columns.values()))
    Console(width=max(170, Console().width)).print(table)  # wide enough also where the output is a file


def print_rates(title: str, rows: Sequence[Row], *, baseline: str = "") -> None:
    """Print rates, CPU and memory; a last column divides messages per CPU second by the baseline's in that case."""
    baselines = {row.case: row for row in rows if row.name == baseline}

    def ratio(row: Row) -> str:
        base = baselines.get(row.case, row)
        return "" if base is row else f"{row.messages_per_cpu_second / base.messages_per_cpu_second:.1f}"

    columns = {
        "case": lambda row: row.case,
        "name": lambda row: row.name,
        "messages/s": lambda row: f"{row.messages_per_second:,.0f}",
        "messages/CPU s": lambda row: f"{row.messages_per_cpu_second:,.0f}",
        "MB/s": lambda row: f"{row.bytes / row.seconds / 1e6:,.0f}",
        "CPU s per 1 M": lambda row: f"{row.cpu_seconds / row.messages * 1e6:.2f}",
        "peak MiB": lambda row: f"{row.peak_rss_bytes / MIB:,.0f}",
    }
    print_table(title, rows, columns | ({f"× {baseline}": ratio} if baseline else {}))


def write_json(rows: Sequence[Row], path: Path | None) -> None:
    """Write the rows to the file of `--json`, if that option is used."""
    if path:
        documents = [asdict(row) for row in rows]
        path.write_text(json.dumps([row | row.pop("extra") for row in documents], indent=1) + "\n")
