"""What is settled once and for all by an object that is created if absent: a plan, and what was staged for it.

A partition run and a dedup sweep keep to the same rule. Whoever comes second, a rival or a retry after a crash, finds
the object and goes by it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from waybill.errors import ObjectAlreadyThere, PlanUnusable
from waybill.staging.table_layout import Entry, look_up
from waybill.store import Store

__all__ = ["record_staged_document", "settle_plan", "staged_files"]


class _Plan(Protocol):
    def to_json(self) -> bytes: ...


_P = TypeVar("_P", bound=_Plan)


def settle_plan(store: Store, key: str, parse: Callable[[str, bytes], _P], make: Callable[[], _P | None]) -> _P | None:
    """The plan of that name: the one that is there, else a new one; None if there is nothing to do.

    `parse`: of key and content. `make` is called only if there is none yet. If a rival creates it meanwhile, the
    rival's counts.
    """
    found = store.read_if_there(key)
    if found is None:
        plan = make()
        if plan is None:
            return None
        try:
            store.create_if_absent(key, plan.to_json())
        except ObjectAlreadyThere:
            found = store.read_if_there(key)
        else:
            return plan
    return None if found is None else parse(key, found)


def record_staged_document(store: Store, key: str, document: Mapping[str, Any]) -> bool:
    """Say what the run `document["run"]` has staged. False: another run has said so before, and its files count."""
    there = store.create_unless_there(key, json.dumps(document, separators=(",", ":")).encode())
    # It may be our own: a create whose answer was lost is tried again, and refused.
    return there is None or bool(json.loads(there)["run"] == document["run"])


def staged_files(table: Table, entries: Sequence[Entry], key: str) -> list[DataFile]:
    """The files of `table` that the object of that key names. Raises `PlanUnusable` when one is gone."""
    try:
        return look_up(table, entries)
    except FileNotFoundError as error:
        raise PlanUnusable(
            f"{key} names a data file that is gone: {error}. If the plan is to be carried out anew, remove this object "
            f"and run again"
        ) from error


LEAST_TASK_BYTES = 32 << 20
"""A task of less backup than that is not made only because another could run beside it: each makes files of its own."""
