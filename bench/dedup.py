"""Keep each message once, compared with a window of keys: Waybill's sweep, and the ways to do it in Spark.

    python bench/dedup.py [--huge] [--case SIZE_OR_NAME] [--messages N] [--repeats N] [--json FILE]

The input is a million new messages (`--messages`) of about 450 bytes, in Parquet files as the partition job writes
them. 6 in 1,000 have the id of a message of the window: nine of ten of one of its last day, the others of one of its
first. The cases are the numbers of keys in the window, `0.1M` to `64M`, and `256M` with `--huge`. One repeat reads the
new rows, writes those that repeat no key, and adds their keys to the store of keys. After each repeat the script checks
that exactly the right rows were written.

- `waybill`: the sweep, to the commit of unique rows, duplicates and the index, as hourly sweeps and merges leave it.
- `waybill-unmerged`: the same, with the sorted runs of the last 24 sweeps not merged yet.
- `anti-join`: a left anti-join with a Parquet table of keys.
- `broadcast`: the new keys broadcast over a scan of that table.
- `bucketed-join`: the table of keys bucketed and sorted by key, merged with the new keys without shuffling the table.
- `iceberg-merge`: `MERGE INTO … WHEN NOT MATCHED` on an Iceberg table that holds both rows and keys.
- `within-watermark`: `dropDuplicatesWithinWatermark` with RocksDB and `availableNow`.

All run on the local disk with `local[2]`, in a session that has done it once before; the start of the session is a
column. CPU seconds are those of all processes; those of Waybill's S3 server have a column of their own. Bytes read are
the kernel's `rchar` (all read calls: shuffles, spills and pipes between Spark's processes included), for Waybill with
those of its S3 server. The JSON has the part of the index (`index_read_bytes`). The peak memory is that of the repeat
that is not timed, of the session's processes without the driver's Python.
"""

from __future__ import annotations

import argparse
import atexit
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from measurement import (
    MIB,
    Case,
    ProcessTreeSampler,
    Row,
    Sample,
    Work,
    argument_parser,
    print_table,
    run_cases,
    run_only_case,
    write_json,
)
from services import s3_server

if TYPE_CHECKING:
    import pyarrow as pa
    from dedup_inputs import Inputs, Window

OURS = "waybill"
_MILLION = 1_000_000
SIZES = {"0.1M": _MILLION // 10, **{f"{n}M": n * _MILLION for n in (1, 4, 16, 64, 256)}}
HUGE = "256M"
_UNMERGED_HOURS = 24
_TOO_SLOW = "it shuffles the window, and took several times as long as the others at 64M"
_TOO_SLOW_TO_PREPARE = "building its state from the window takes longer than all other cases together"
LEFT_OUT = {
    ("anti-join", HUGE): _TOO_SLOW,
    ("iceberg-merge", HUGE): _TOO_SLOW,
    **{("within-watermark", size): _TOO_SLOW_TO_PREPARE for size in ("16M", "64M", HUGE)},
}


class Method(Protocol):
    """A way to drop what a window has seen already. All processes that it starts are descendants of this one."""

    def start(self) -> None:
        """Start the session; return when it has answered a first query."""

    def prepare(self) -> None:
        """Write the store of the window's keys."""

    def run(self) -> Mapping[str, float]:
        """Write the new rows that repeat no key of the window, add their keys to the store; return extra figures."""

    def kept_ids(self) -> pa.ChunkedArray:
        """Return the message ids of the rows that the last run wrote."""

    def stored_keys(self) -> int:
        """Return how many keys the store has."""

    def index_bytes(self) -> int:
        """Return the size of the store of keys before a run."""

    def server_read_bytes(self) -> int:
        """Return how many bytes servers outside of this process tree have read for the method so far."""

    def reset(self) -> None:
        """Undo the last run, so that the next one meets the same window."""

    def close(self) -> None:
        """End the session."""


# --- one case ---------------------------------------------------------------------------------------------------------


def waybill(inputs: Inputs, unmerged_hours: int = 0) -> Method:
    from dedup_waybill import Waybill

    return Waybill(inputs, unmerged_hours)


def spark_method(name: str, inputs: Inputs) -> Method:
    import dedup_spark

    method: Method = getattr(dedup_spark, name)(inputs)
    return method


METHODS: dict[str, Callable[[Inputs], Method]] = {
    OURS: waybill,
    f"{OURS}-unmerged": partial(waybill, unmerged_hours=_UNMERGED_HOURS),
    "anti-join": partial(spark_method, "AntiJoin"),
    "broadcast": partial(spark_method, "BroadcastKeys"),
    "bucketed-join": partial(spark_method, "BucketedJoin"),
    "iceberg-merge": partial(spark_method, "IcebergMerge"),
    "within-watermark": partial(spark_method, "WithinWatermark"),
}


def prepare(make: Callable[[Inputs], Method], case: str, arguments: argparse.Namespace) -> Work:
    """Start the session, write the window, and run once unmeasured but for the peak of memory."""
    from dedup_inputs import Inputs, NewRows, Window

    new = NewRows(arguments.messages)
    files = sorted(str(path) for path in arguments.new.rglob("*.parquet"))
    folder = arguments.folder / "case"
    folder.mkdir()
    window = Window(SIZES[case], new)
    method = make(Inputs(new, files, window, folder))
    start = time.perf_counter()
    method.start()
    atexit.register(method.close)
    session_seconds = time.perf_counter() - start
    start = time.perf_counter()
    method.prepare()
    figures = {
        "keys": window.count,
        "index_bytes_per_key": method.index_bytes() / window.count,
        "session_seconds": session_seconds,
        "prepare_seconds": time.perf_counter() - start,
    }
    with ProcessTreeSampler() as sampler:
        method.run()
    check(method, window)
    method.reset()

    def work() -> Sample:
        cpu, read_bytes = tree_cpu_and_read_bytes()
        read_bytes += method.server_read_bytes()
        start = time.perf_counter()
        extra = method.run()
        seconds = time.perf_counter() - start
        cpu_after, read_after = tree_cpu_and_read_bytes()
        read_after += method.server_read_bytes()
        check(method, window)
        method.reset()
        size = read_after - read_bytes
        return Sample(new.count, size, {**figures, **extra}, seconds, cpu_after - cpu, sampler.peak_bytes)

    return work


def check(method: Method, window: Window) -> None:
    """Raise `RuntimeError` unless the last run wrote exactly the rows that repeat no key, and stored their keys."""
    import numpy as np
    import pyarrow.compute as pc

    new = window.new
    unique = np.ones(new.count, bool)
    unique[new.repeated] = False
    expected, kept = new.id_texts(np.flatnonzero(unique)).sort(), method.kept_ids().combine_chunks().sort()
    if not kept.equals(expected):
        missing = pc.sum(pc.invert(pc.is_in(expected, kept))).as_py()
        surplus = pc.sum(pc.invert(pc.is_in(kept, expected))).as_py()
        raise RuntimeError(f"{len(kept):,} rows were written; {missing} are missing, {surplus} repeat a key")
    stored = method.stored_keys()
    if stored != window.count + len(expected):
        raise RuntimeError(f"{stored:,} keys are stored instead of {window.count:,} + {len(expected):,} new ones")


def tree_cpu_and_read_bytes() -> tuple[float, int]:
    """Return CPU seconds and bytes read (`rchar`) of this process, its descendants, and their ended children.

    Spark keeps its Python workers, so those of a run have not ended at its end.
    """
    import psutil

    cpu_seconds, read_bytes = 0.0, 0
    own = psutil.Process()
    for process in [own, *own.children(recursive=True)]:
        with suppress(psutil.Error):  # the process has ended
            times = process.cpu_times()
            cpu_seconds += times.user + times.system + times.children_user + times.children_system
            read_bytes += process.io_counters().read_chars
    return cpu_seconds, read_bytes


# --- all cases --------------------------------------------------------------------------------------------------------


def cases_of(arguments: argparse.Namespace) -> Iterator[Case]:
    """Yield the cases to measure. Sizes among `--case` restrict the sizes, names restrict the names."""
    wanted = set(arguments.case or ())
    for size in SIZES:
        if size == HUGE and not arguments.huge:
            continue
        for name, make in METHODS.items():
            if size not in (wanted & set(SIZES) or SIZES) or name not in (wanted & set(METHODS) or METHODS):
                continue
            if reason := LEFT_OUT.get((name, size)):
                print(f"{name} {size} is left out: {reason}", file=sys.stderr)
                continue
            yield Case(name, size, partial(prepare, make), warm_up=False)


def measure_all(arguments: argparse.Namespace) -> list[Row]:
    """Measure each case in a process of its own, Waybill's with an S3 server of their own."""
    from dedup_inputs import NewRows, local_layout
    from pyiceberg.io.pyarrow import PyArrowFileIO

    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="waybill-bench-") as root:
        new, scratch = Path(root) / "new", Path(root) / "scratch"
        new.mkdir()
        scratch.mkdir()
        print("writing the new rows …", file=sys.stderr, flush=True)
        NewRows(arguments.messages).write(local_layout(new), PyArrowFileIO(), scratch)
        for case in cases_of(arguments):
            with tempfile.TemporaryDirectory(dir=root) as folder, ExitStack() as stack:
                if case.name.startswith(OURS):
                    server = Path(folder) / "s3"
                    server.mkdir()
                    stack.enter_context(s3_server(server))
                rows += run_cases([case], arguments, "--new", str(new), "--folder", folder)
            row = rows[-1]
            print(f"{row.name} {row.case}: {row.seconds:.2f} s, {row.cpu_seconds:.2f} CPU s", file=sys.stderr)
            write_json(rows, arguments.json)  # after each case: all of them take an hour
    return rows


def print_rows(rows: Sequence[Row], messages: int) -> None:
    smallest = {row.name: row for row in rows if row.case == "1M"}

    def best_alternative(row: Row, figure: str) -> str:
        """How many times the row's figure the best alternative takes, and its name."""
        others = [other for other in rows if other.case == row.case and not other.name.startswith(OURS)]
        if not row.name.startswith(OURS) or not others:
            return ""
        best = min(others, key=lambda other: getattr(other, figure))
        return f"{getattr(best, figure) / getattr(row, figure):.2f} ({best.name})"

    columns = {
        "case": lambda row: row.case,
        "name": lambda row: row.name,
        "seconds": lambda row: f"{row.seconds:.2f}",
        "CPU s": lambda row: f"{row.cpu_seconds:.2f}",
        "S3's CPU s": lambda row: f"{row.extra['s3_cpu_seconds']:.2f}" if "s3_cpu_seconds" in row.extra else "",
        "MB read": lambda row: f"{row.bytes / 1e6:,.0f}",
        "bytes a key": lambda row: f"{row.extra['index_bytes_per_key']:.1f}",
        "peak MiB": lambda row: f"{row.peak_rss_bytes / MIB:,.0f}",
        "start s": lambda row: f"{row.extra['session_seconds']:.1f}",
        "× own 1M": lambda row: f"{row.seconds / smallest[row.name].seconds:.2f}" if row.name in smallest else "",
        "best alternative: × s": lambda row: best_alternative(row, "seconds"),
        "best: × CPU s": lambda row: best_alternative(row, "cpu_seconds"),
    }
    print_table(f"{messages:,} new messages compared with windows of keys, local[2]", rows, columns)


def main() -> None:
    parser = argument_parser(__doc__, repeats=3)
    parser.add_argument("--huge", action="store_true", help=f"also {HUGE}: takes half an hour and 25 GB of disk")
    parser.add_argument("--messages", type=int, default=_MILLION, help="new messages (by default a million)")
    parser.add_argument("--new", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        name, size = arguments.only
        run_only_case([Case(name, size, partial(prepare, METHODS[name]), warm_up=False)], arguments)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # as Ctrl-C: removes the windows and ends the servers
    print_rows(measure_all(arguments), arguments.messages)


if __name__ == "__main__":
    main()
