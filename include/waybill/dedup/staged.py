"""What a sweep has staged: its files in either table, the state after it, and its runs of the index.

Two tables cannot be committed together. So the first sweep that has carried out a plan writes down its files, in an
object that is created if absent. Whoever comes after it, a rival or a retry after a crash between the two commits,
commits these files and none of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from pyiceberg.manifest import DataFile

from waybill.dedup.index.runs import Run
from waybill.dedup.plan import SweepPlan
from waybill.documents import read_document
from waybill.errors import PlanUnusable, WaybillError
from waybill.names import TopicPartition, staged_key
from waybill.staging.driver import record_staged_document, staged_files
from waybill.staging.table_layout import entries_of
from waybill.store import Store
from waybill.tables import DedupTables, remove_files
from waybill.tables.dedup import NO_HORIZON_MS, SweepState, Swept

__all__ = ["StagedSweep", "discard", "find_staged_sweep", "record_staged_sweep", "remove_objects"]

_VERSION = 1
_THREADS = 4  # as many as a store has connections


@dataclass(frozen=True, slots=True)
class StagedSweep:
    """The files of a plan, and what the tables and the index say once they are committed."""

    run_id: str
    unique_files: Sequence[DataFile]
    duplicate_files: Sequence[DataFile]
    state: SweepState
    """After the sweep."""
    runs: tuple[Run, ...]
    """The kept keys."""
    covers: int
    """Up to which sequence number of the unique table the index knew everything when these were judged."""

    @property
    def rows(self) -> int:
        """Rows that are kept."""
        return sum(file.record_count for file in self.unique_files)

    @property
    def duplicates(self) -> int:
        return sum(file.record_count for file in self.duplicate_files)


def find_staged_sweep(store: Store, plan: SweepPlan, tables: DedupTables) -> StagedSweep | None:
    """What was staged for a plan, if a sweep got that far.

    Raises `PlanUnusable` when a file that was staged is gone, or when what was staged is not of this plan;
    `GenerationConflict` when a newer Waybill wrote it.
    """
    key = staged_key(plan.key)
    found = store.read_if_there(key)
    if found is None:
        return None
    remedy = "Let the Waybill that wrote it commit it, or remove the object, and run again"
    try:
        document = read_document(found, _VERSION, key, remedy=remedy)
        if document["plan"] != plan.digest:
            raise PlanUnusable(
                f"{key} belongs to another plan than {plan.key} is now: one of the two was replaced by hand. Remove "
                f"{key}, and run again"
            )
        state = _state(plan, document["state"])
        runs = tuple(Run(**fields) for fields in document["runs"])
        return StagedSweep(
            document["run"],
            staged_files(tables.unique, document["unique"], key),
            staged_files(tables.duplicates, document["duplicates"], key),
            state,
            runs,
            document["covers"],
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PlanUnusable(f"{key} cannot be read ({error}): remove the object, and run again") from error


def record_staged_sweep(store: Store, plan: SweepPlan, staged: StagedSweep) -> bool:
    """Say which files a plan has. False: another sweep has said so before, and its files count."""
    state = staged.state
    document: dict[str, Any] = {
        "v": _VERSION,
        "plan": plan.digest,
        "run": staged.run_id,
        "unique": entries_of(staged.unique_files),
        "duplicates": entries_of(staged.duplicate_files),
        "state": {
            "watermarks": {str(tp): at for tp, at in sorted(state.watermarks.items())},
            "horizon_ms": None if state.horizon_ms == NO_HORIZON_MS else state.horizon_ms,
        },
        "runs": [asdict(run) for run in staged.runs],
        "covers": staged.covers,
    }
    return record_staged_document(store, staged_key(plan.key), document)


def discard(store: Store, tables: DedupTables, staged: StagedSweep) -> None:
    """Remove the files of a sweep that lost. Nothing has ever referenced them."""
    remove_files(tables.unique.io, [file.file_path for file in (*staged.unique_files, *staged.duplicate_files)])
    remove_objects(store, [path for run in staged.runs for path in (run.path, run.filter_path)])


def remove_objects(store: Store, keys: Sequence[str]) -> None:
    """Remove objects that nothing names any more. What stays is removed by maintenance: no reason to fail."""

    def remove(key: str) -> None:
        with suppress(WaybillError):
            store.remove(key)

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(remove, keys))


def _state(plan: SweepPlan, document: Mapping[str, Any]) -> SweepState:
    assert plan.end.snapshot_id is not None
    horizon_ms = document["horizon_ms"]
    return SweepState(
        swept=Swept(plan.main, plan.end.snapshot_id, plan.end.sequence),
        watermarks={TopicPartition.parse(tp): int(at) for tp, at in document["watermarks"].items()},
        horizon_ms=NO_HORIZON_MS if horizon_ms is None else int(horizon_ms),
        beginning=plan.beginning,
    )
