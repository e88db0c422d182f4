"""What dedup sweeps leave behind, and what of the stream's tables they still need.

**Snapshots of the main table that no sweep has taken in** must not expire: what they added could not be told any more,
and if it was compacted since, its files would go with them.

**Plans of sweeps, and what was staged and marked for them.** A plan can be committed only as long as the unique table
has not come beyond where the plan starts, which is its name: until then it is *open*, and its files stay, however old.

**Files of the key index.** An index is what its newest manifest says, and derived from the unique table: one that
lacks a file is built anew. The manifests before it are for those who read them just now.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyiceberg.table.metadata import TableMetadata

from waybill.maintenance.leftovers import Plans, StagedPlan, strings_of
from waybill.names import key_index_manifests_prefix, key_index_version_of
from waybill.store import ListedObject, Store
from waybill.tables import Swept
from waybill.tables.state import ancestry

__all__ = ["KEPT_MANIFESTS", "Unswept", "find_sweeps", "find_unswept", "of_other_tables", "unneeded_index_files"]

logger = logging.getLogger(__name__)

KEPT_MANIFESTS = 10

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SWEEP = re.compile(r"([0-9]{20})(?:\.json|\.staged\.json|\.marks/.+)")
_PLAN, _STAGED = ".json", ".staged.json"


@dataclass(frozen=True, slots=True)
class Unswept:
    """Snapshots of the main table that no sweep has taken in."""

    committed_at: tuple[datetime, ...]
    """When each was committed, oldest first; at least one."""

    @property
    def since(self) -> datetime:
        """When the oldest was committed: no snapshot of that time or later may expire."""
        return self.committed_at[0]

    def before(self, time: datetime) -> int:
        """How many were committed before that time."""
        return sum(at < time for at in self.committed_at)


def find_unswept(main: TableMetadata, swept: Swept | None) -> Unswept | None:
    """What of a main table's history comes after what was swept, None: nothing of it; `swept` None: there was no sweep.

    The first sweep takes in all rows, and may read their files for as long as it takes: so until it has come, all
    snapshots are unswept.
    """
    through = -1 if swept is None else swept.sequence
    later = [s.timestamp_ms for s in ancestry(main) if (s.sequence_number or 0) > through]
    return Unswept(tuple(_EPOCH + timedelta(milliseconds=at) for at in sorted(later))) if later else None


def find_sweeps(store: Store, prefix: str, swept: Swept | None) -> Plans:
    """The plans of sweeps below `prefix` (of `names.sweeps_prefix`), by what may become of them."""
    by_id: dict[str, list[ListedObject]] = {}
    for entry in store.list_objects(prefix):
        match = _SWEEP.fullmatch(entry.key.removeprefix(prefix))
        if match is not None:
            by_id.setdefault(match[1], []).append(entry)
    through = -1 if swept is None else swept.sequence
    return Plans(
        open=tuple(_open_sweep(store, *found) for found in by_id.items() if int(found[0]) >= through),
        passed=tuple(
            StagedPlan(plan_id, None, frozenset(), _in_order(entries))
            for plan_id, entries in by_id.items()
            if int(plan_id) < through
        ),
    )


def _open_sweep(store: Store, plan_id: str, entries: list[ListedObject]) -> StagedPlan:
    staged = [entry.key for entry in entries if entry.key.endswith(_STAGED)]
    return StagedPlan(
        plan_id, None, frozenset[str]().union(*(_names(store, key) for key in staged)), _in_order(entries)
    )


def _names(store: Store, key: str) -> frozenset[str]:
    """All that a document names: data files, and files of the index."""
    try:
        return frozenset(strings_of(json.loads(store.read_if_there(key) or b"{}")))
    except ValueError as error:
        logger.warning("%s cannot be read: %s", key, error)
        return frozenset()


def _in_order(entries: list[ListedObject]) -> tuple[ListedObject, ...]:
    """Whoever finds the plan finds all of it: so that goes last."""
    return tuple(sorted(entries, key=lambda e: (e.key.endswith(_PLAN) and not e.key.endswith(_STAGED), e.key)))


def unneeded_index_files(
    store: Store, index: str, *, before: datetime, needed: Collection[str]
) -> Iterator[ListedObject]:
    """What may go of a key index, below `index` (of `names.key_index_prefix`), and is older than `before`.

    Those are manifests, but for the newest `KEPT_MANIFESTS`, and files that no other manifest names, nor `needed`,
    which are keys, with or without `index`.
    """
    listed = list(store.list_objects(index))
    # Once more, later: a run that was listed just now may be in a manifest that was not.
    manifests = list(store.list_objects(key_index_manifests_prefix(index)))
    versions = sorted((v for e in manifests if (v := key_index_version_of(e.key)) is not None), reverse=True)
    newest = set(versions[:KEPT_MANIFESTS])
    kept = [e for e in manifests if key_index_version_of(e.key) in newest or e.modified >= before]
    yield from (e for e in manifests if e not in kept and key_index_version_of(e.key) is not None)
    named = frozenset(needed).union(*(_names(store, entry.key) for entry in kept))
    for entry in listed:
        is_run = not entry.key.startswith(key_index_manifests_prefix(index))
        if is_run and entry.modified < before and named.isdisjoint((entry.key, entry.key.removeprefix(index))):
            yield entry


def of_other_tables(store: Store, prefix: str, *, before: datetime) -> Iterator[ListedObject]:
    """What lies beside `prefix`, which ends with a table's uuid, and is older than `before`: of tables dropped since.

    It is derived from them, and of no use to the one that has taken their place.
    """
    beside = f"{prefix.rstrip('/').rpartition('/')[0]}/"
    return (e for e in store.list_objects(beside) if not e.key.startswith(prefix) and e.modified < before)
