"""Each message once, against a window of keys: Waybill's sweep beside what else one would do in Spark.

    python bench/dedup.py [--huge] [--case CASE_OR_NAME] [--json FILE] [--repeats N]

A million new messages of about 450 bytes, in Parquet files as the partition job writes them, of which 6 in 1,000 have
the id of one of the window's: most of the last day's, a tenth of those of its first day. Cases are the number of keys
in the window, `1M` to `64M`, and `256M` with `--huge`. A run reads the new rows, writes those that repeat nothing, and
adds their keys to the store of keys. That exactly the right rows were written is checked after each run.

- `waybill`: the sweep, to the commit of unique rows, duplicates and the index, as hourly sweeps and merges leave it.
- `waybill-unmerged`: the same, where the last 24 sweeps' runs are not merged yet.
- `anti-join`: a left anti-join with a Parquet table of keys.
- `broadcast`: the new keys broadcast over a scan of that table.
- `bucketed-join`: the table of keys bucketed and sorted by key, merged with the new keys without a shuffle of it.
- `iceberg-merge`: `MERGE INTO … WHEN NOT MATCHED` on an Iceberg table that is both.
- `within-watermark`: `dropDuplicatesWithinWatermark` over RocksDB, with `availableNow`.

All on the local disk and `local[2]`, in a session that has done it once before; what it takes to start one is a column.
CPU seconds are those of all processes but Waybill's S3 server, whose are a column. Bytes read are the kernel's `rchar`:
what read calls gave, shuffles, spills and what Spark's processes send each other included; for Waybill what its S3
server read, too. How much of that was the index is in the JSON (`index_read_bytes`). The session's peak of memory is
that of the run which is not timed, the driver's Python left out.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from _report import Row, argument_parser, in_fresh_process, write_json
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from _dedup_method import Given, Method

OURS = "waybill"
SIZES = {"1M": 1, "4M": 4, "16M": 16, "64M": 64, "256M": 256}
HUGE = "256M"
_MILLION = 1_000_000
_MIB = 1 << 20
_UNMERGED_HOURS = 24


@dataclass(frozen=True)
class Contender:
    """A method, and which cases it is left out of, with the reason."""

    make: Callable[[Given], Method]
    left_out: tuple[str, ...] = ()
    reason: str = ""


def waybill(given: Given, unmerged_hours: int = 0) -> Method:
    from _dedup_waybill import Waybill

    return Waybill(given, unmerged_hours)


def rival(name: str) -> Callable[[Given], Method]:
    def make(given: Given) -> Method:
        import _dedup_spark

        made: Method = getattr(_dedup_spark, name)(given)
        return made

    return make


_SLOW = "it shuffles the window, and took several times the others' time at 64M"
CONTENDERS: Mapping[str, Contender] = {
    OURS: Contender(waybill),
    f"{OURS}-unmerged": Contender(partial(waybill, unmerged_hours=_UNMERGED_HOURS)),
    "anti-join": Contender(rival("AntiJoin"), (HUGE,), _SLOW),
    "broadcast": Contender(rival("BroadcastKeys")),
    "bucketed-join": Contender(rival("BucketedJoin")),
    "iceberg-merge": Contender(rival("IcebergMerge"), (HUGE,), _SLOW),
    "within-watermark": Contender(
        rival("WithinWatermark"),
        ("16M", "64M", HUGE),
        "its state is made by feeding it the window, key by key, which takes longer than all the others together",
    ),
}


def cases(arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Name and case of what is to be measured. What is left out is said."""
    for case in SIZES:
        if case == HUGE and not arguments.huge:
            continue
        for name, contender in CONTENDERS.items():
            if not chosen(case, name, arguments.case or ()):
                continue
            if case in contender.left_out:
                print(f"{name} {case} is left out: {contender.reason}", file=sys.stderr)
                continue
            yield name, case


def chosen(case: str, name: str, wanted: Sequence[str]) -> bool:
    """Sizes among `wanted` restrict sizes, names restrict names."""
    sizes, names = set(wanted) & set(SIZES), set(wanted) & set(CONTENDERS)
    return (not sizes or case in sizes) and (not names or name in names)


# --- running ----------------------------------------------------------------------------------------------------------


def measure_here(name: str, case: str, arguments: argparse.Namespace) -> Row:
    """One case, in this process."""
    from _dedup_data import NewRows, Window
    from _dedup_method import Given, measure

    new = NewRows(arguments.messages)
    files = sorted(str(path) for path in arguments.new.rglob("*.parquet"))
    folder = arguments.folder / "case"
    folder.mkdir()
    window = Window(SIZES[case] * _MILLION * arguments.messages // _MILLION, new)
    return measure(name, case, CONTENDERS[name].make(Given(new, files, window, folder)), arguments.repeats)


def measure_all(arguments: argparse.Namespace) -> list[Row]:
    """Each case in a process of its own, and with an S3 server of its own if it is ours."""
    from _dedup_data import NewRows, local_layout
    from _dedup_waybill import s3_server
    from pyiceberg.io.pyarrow import PyArrowFileIO

    rows = []
    with tempfile.TemporaryDirectory(prefix="waybill-bench-") as place:
        new, scratch = Path(place) / "new", Path(place) / "scratch"
        for folder in (new, scratch):
            folder.mkdir()
        print("making the new rows …", file=sys.stderr, flush=True)
        NewRows(arguments.messages).write(local_layout(new), PyArrowFileIO(), scratch)
        for name, case in list(cases(arguments)):
            print(f"{name} {case} …", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(dir=place) as folder, ExitStack() as kept:
                if name.startswith(OURS):
                    server = Path(folder) / "s3"
                    server.mkdir()
                    kept.enter_context(s3_server(server))
                options = [*sys.argv[1:], "--new", str(new), "--folder", folder]
                rows.append(in_fresh_process(name, case, options))
            print(f"{name} {case}: {in_words(rows[-1])}", file=sys.stderr, flush=True)
            if arguments.json:
                write_json(rows, arguments.json)  # a run of all cases takes an hour: what is there is kept
    return rows


def in_words(row: Row) -> str:
    """For who waits."""
    return (
        f"{row.seconds:.2f} s, {row.cpu_seconds:.2f} CPU s, {float(row.extra['index_bytes_per_key']):.1f} bytes a key"
    )


# --- the table --------------------------------------------------------------------------------------------------------


def show(rows: Sequence[Row], messages: int) -> None:
    headings = ("seconds", "CPU s", "S3's CPU s", "MB read", "bytes a key", "peak MiB", "start s", "× own 1M")
    table = Table(title=f"{messages:,} new messages against windows of keys, local[2]", title_justify="left")
    table.add_column("case")
    table.add_column("name")
    for heading in (*headings, "best alternative: × s", "best: × CPU s"):
        table.add_column(heading, justify="right")
    for row in rows:
        first = next((r for r in rows if r.name == row.name and r.case == "1M"), None)
        table.add_row(
            row.case,
            row.name,
            f"{row.seconds:.2f}",
            f"{row.cpu_seconds:.2f}",
            f"{float(row.extra['s3_cpu_seconds']):.2f}" if "s3_cpu_seconds" in row.extra else "",
            f"{row.bytes / 1e6:,.0f}",
            f"{float(row.extra['index_bytes_per_key']):.1f}",
            f"{row.peak_rss_bytes / _MIB:,.0f}",
            f"{float(row.extra['session_seconds']):.1f}",
            f"{row.seconds / first.seconds:.2f}" if first else "",
            *beside_the_best(row, rows),
        )
    Console(width=max(170, Console().width)).print(table)


def beside_the_best(row: Row, rows: Sequence[Row]) -> tuple[str, str]:
    """For a row of ours: how many times its seconds, and its CPU seconds, the best alternative takes, and which it is.

    The best by seconds and the best by CPU may be two.
    """
    others = [other for other in rows if other.case == row.case and not other.name.startswith(OURS)]
    if not row.name.startswith(OURS) or not others:
        return "", ""
    quickest = min(others, key=lambda other: other.seconds)
    leanest = min(others, key=lambda other: other.cpu_seconds)
    return (
        f"{quickest.seconds / row.seconds:.2f} ({quickest.name})",
        f"{leanest.cpu_seconds / row.cpu_seconds:.2f} ({leanest.name})",
    )


def run() -> None:
    parser = argument_parser("each message once, against a window of keys: seconds, CPU seconds, bytes read")
    parser.set_defaults(repeats=3)
    parser.add_argument("--huge", action="store_true", help=f"also {HUGE}: takes half an hour and 25 GB of disk")
    parser.add_argument(
        "--messages", type=int, default=_MILLION, help="fewer, and windows as much smaller: a quick try"
    )
    parser.add_argument("--new", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(dataclasses.asdict(measure_here(*arguments.only, arguments))))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # as Ctrl-C does: windows and servers go
    show(measure_all(arguments), arguments.messages)


if __name__ == "__main__":
    run()
