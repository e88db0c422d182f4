"""What bench/dedup.py measures: a method of dropping what a window has seen, in a session that is warm.

`start` and `prepare` come first; then, as often as is asked for, `run`, the checks, and `reset`, which takes back what
the run has added, so that each run meets the same window.
"""

from __future__ import annotations

import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
from _dedup_data import NewRows, Window
from _report import Row
from _tree import Peak

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Given", "Method", "measure"]

FIGURES = ("seconds", "cpu_seconds", "bytes")


@dataclass(frozen=True)
class Given:
    """What a method gets: the new rows, in files, and the window, of which it makes what it needs in `folder`."""

    new: NewRows
    files: Sequence[str]
    """Paths of the new rows' Parquet files on this disk."""
    window: Window
    folder: Path


class Method(ABC):
    """One way to do it. Whatever it starts lives in this process and its children."""

    def __init__(self, given: Given) -> None:
        self.given = given

    @abstractmethod
    def start(self) -> None:
        """Start the session, up to where it has answered."""

    @abstractmethod
    def prepare(self) -> None:
        """Make the store of the window's keys."""

    @abstractmethod
    def run(self) -> Mapping[str, float]:
        """Read the new rows, write those that repeat no key of the window, and add the keys of these to the store.

        What it returns goes into the row.
        """

    @abstractmethod
    def kept_ids(self) -> pa.ChunkedArray:
        """The message ids of the rows that the last run wrote."""

    @abstractmethod
    def stored_keys(self) -> int:
        """How many keys the store has, by its own account."""

    @abstractmethod
    def index_bytes(self) -> int:
        """The size of the store of keys, before a run."""

    @abstractmethod
    def reset(self) -> None:
        """Take back what the last run did."""

    def read_elsewhere_bytes(self) -> int:
        """What servers that are no children of this process have read for it so far."""
        return 0

    @abstractmethod
    def close(self) -> None:
        """End the session."""


def measure(name: str, case: str, method: Method, repeats: int) -> Row:
    """Run once unmeasured, for the peak of memory, then `repeats` times; medians. Each run's result is checked."""
    began = time.perf_counter()
    method.start()
    session_seconds = time.perf_counter() - began
    try:
        began = time.perf_counter()
        method.prepare()
        prepare_seconds = time.perf_counter() - began
        index_bytes = method.index_bytes()
        with Peak() as peak:
            method.run()
        check(method)
        method.reset()
        runs = [_measured(method) for _ in range(repeats)]
    finally:
        method.close()
    median = {figure: statistics.median(run[figure] for run in runs) for figure in runs[0]}
    seconds, cpu_seconds, read_bytes = (median.pop(figure) for figure in FIGURES)
    count = method.given.window.count
    return Row(
        name=name,
        case=case,
        messages=method.given.new.count,
        bytes=int(read_bytes),
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        peak_rss_bytes=peak.bytes,
        extra={
            "keys": count,
            "index_bytes_per_key": index_bytes / count,
            "session_seconds": session_seconds,
            "prepare_seconds": prepare_seconds,
            **median,
        },
    )


def check(method: Method) -> None:
    """The rows that were written are exactly those that repeat nothing, and their keys are in the store now.

    Raises `RuntimeError` that says what is missing or too much.
    """
    new, window = method.given.new, method.given.window
    kept = np.ones(new.count, bool)
    kept[new.repeated] = False
    expected, found = new.id_texts(np.flatnonzero(kept)).sort(), method.kept_ids().combine_chunks().sort()
    if not found.equals(expected):
        lost = pc.sum(pc.invert(pc.is_in(expected, found))).as_py()
        passed = pc.sum(pc.invert(pc.is_in(found, expected))).as_py()
        raise RuntimeError(f"wrong: {len(found):,} rows were kept; {lost} are missing, {passed} should not be there")
    stored = method.stored_keys()
    if stored != window.count + len(expected):
        raise RuntimeError(f"{stored:,} keys are stored, {window.count:,} were and {len(expected):,} are new")


def _measured(method: Method) -> dict[str, float]:
    before, elsewhere = _spent(), method.read_elsewhere_bytes()
    began = time.perf_counter()
    extra = method.run()
    seconds = time.perf_counter() - began
    after = _spent()
    read = after[1] - before[1] + method.read_elsewhere_bytes() - elsewhere
    check(method)
    method.reset()
    return {"seconds": seconds, "cpu_seconds": after[0] - before[0], "bytes": read, **extra}


def _spent() -> tuple[float, int]:
    """CPU seconds of this process and all its descendants, those that have ended included; and what they have read.

    Read, by the kernel's account (`rchar`): what read calls gave, from files and pipes, in the page cache or not.
    Spark keeps its Python workers, so none of those that a run used has ended at its end.
    """
    cpu_seconds, read_bytes = 0.0, 0
    own = psutil.Process()
    for process in [own, *own.children(recursive=True)]:
        with suppress(psutil.Error, OSError):
            times = process.cpu_times()
            cpu_seconds += times.user + times.system + times.children_user + times.children_system
            lines = Path(f"/proc/{process.pid}/io").read_text().splitlines()
            read_bytes += next(int(line.split()[1]) for line in lines if line.startswith("rchar"))
    return cpu_seconds, read_bytes
