"""`data`: the whole job over several times as much."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from _partition.archive import PARTITIONS, put
from _partition.job import show_jobs, waybill_job
from _partition.section import Case, Section

__all__ = ["DATA"]


def _cases(arguments: argparse.Namespace) -> Iterator[Case]:
    for times in arguments.times:
        yield waybill_job(f"data_{times}", f"{times} ×", once=True)


def _make_input(arguments: argparse.Namespace) -> None:
    for times in arguments.times:
        put(f"data_{times}", messages=times * arguments.few, objects=times * PARTITIONS)


DATA = Section("data", _cases, _make_input, show_jobs)
