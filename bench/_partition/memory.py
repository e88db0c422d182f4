"""`memory`: one task over objects of several sizes: the peak follows `partition.memory`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from _report import Row

from _partition.archive import put
from _partition.section import MIB, Case, Section, show
from _partition.task import whole_task

__all__ = ["MEMORY"]

SIZES = ((16, 256), (64, 256), (256, 256), (256, 64))
"""MiB of an object, and of `partition.memory`."""

_LARGEST = max(size for size, _ in SIZES)
_BYTES_A_MESSAGE = 104  # of the archive


def show_memory(rows: Sequence[Row]) -> None:
    show(
        f"memory: one task over {_LARGEST} MiB of backup",
        ("objects of MiB, partition.memory MiB", "messages", "CPU s", "peak MiB"),
        [(row.case, f"{row.messages:,}", f"{row.cpu_seconds:.1f}", f"{row.peak_rss_bytes / MIB:,.0f}") for row in rows],
    )


def _cases(_: argparse.Namespace) -> Iterator[Case]:
    for size_mib, memory_mib in SIZES:
        case = f"{size_mib} MiB, {memory_mib}"
        yield whole_task(f"memory_{size_mib}", "one task", case, memory=f"{memory_mib}MiB")


def _make_input(_: argparse.Namespace) -> None:
    for size in sorted({size for size, _ in SIZES}):
        put(f"memory_{size}", messages=_LARGEST * MIB // _BYTES_A_MESSAGE, objects=_LARGEST // size, partitions=1)


MEMORY = Section("memory", _cases, _make_input, show_memory)
