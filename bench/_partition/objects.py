"""`objects`: the whole job over the same messages in ever more backup objects."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from _partition.archive import put
from _partition.job import show_jobs, waybill_job
from _partition.section import Case, Section

__all__ = ["OBJECTS"]


def _cases(arguments: argparse.Namespace) -> Iterator[Case]:
    for count in arguments.objects:
        yield waybill_job(f"objects_{count}", f"{count:,}", once=True)


def _make_input(arguments: argparse.Namespace) -> None:
    per_batch = arguments.few // max(arguments.objects)
    for count in arguments.objects:
        put(f"objects_{count}", messages=arguments.few, objects=count, per_batch=per_batch)


OBJECTS = Section("objects", _cases, _make_input, show_jobs)
