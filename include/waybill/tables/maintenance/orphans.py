"""Find files and objects that nothing references any more: data files, index objects, files of the key index.

**Data files** below a table's location are candidates if they are old enough and no open plan needs them. Whether a
snapshot references a candidate is checked later, by Iceberg's own procedure. So a file that is committed in the
meantime is referenced by then, and a file that is written in the meantime is no candidate.

**Index objects** are left over when an upload of a backup object did not complete. An index object can be removed only
if a backup object of the same name exists and names another index object: the upload can then never complete. Without
such a backup object, a lane that was frozen during the upload may still complete it, and the backup object would then
lack its index object.

**Files of the key index** are needed if the newest index manifest names them. The index is derived from the unique
table, so an index that lacks a file is rebuilt. Older manifests are kept for readers that have just read them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from waybill.archive.chain.indexed_reader import INDEX_TOKEN_KEY
from waybill.base.errors import ConfigError, ObjectMissing
from waybill.config import names
from waybill.config.names import key_index_manifests_prefix, key_index_version_of
from waybill.services.store import ListedObject, Store
from waybill.tables.maintenance.plans import read_strings

logger = logging.getLogger(__name__)

KEPT_MANIFESTS = 10
"""The number of newest index manifests that maintenance keeps."""

_LOCATION = re.compile(r"(?P<scheme>s3[an]?)://(?P<bucket>[^/]+)/(?P<key>.+)")


# --- data files of tables ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Location:
    """The location of a table on S3."""

    scheme: str
    bucket: str
    key: str

    @classmethod
    def parse(cls, text: str) -> Location:
        """Parse an Iceberg location. Raises `ConfigError` for one that is not on S3."""
        match = _LOCATION.fullmatch(text.rstrip("/"))
        if match is None:
            raise ConfigError(f"the table at {text!r} cannot be searched for orphan files: only tables on S3 can")
        return cls(match["scheme"], match["bucket"], match["key"])

    def of(self, entry: ListedObject) -> str:
        """Return the location of an object of the same bucket, as Iceberg's metadata writes it."""
        return f"{self.scheme}://{self.bucket}/{entry.key}"


def select_orphan_candidates(
    location: Location, listed: Iterable[ListedObject], *, before: datetime, protected: Callable[[str], bool]
) -> list[tuple[str, ListedObject]]:
    """Return the listed objects that are older than `before` and not protected, with their locations.

    Empty objects for folders, which some S3 clients create, are never candidates.
    """
    old = [(location.of(entry), entry) for entry in listed if entry.modified < before and not entry.key.endswith("/")]
    return [(path, entry) for path, entry in old if not protected(path)]


# --- index objects of backup objects ----------------------------------------------------------------------------------


def find_orphaned_indexes(store: Store, topics: Iterable[str], generation: int) -> Iterator[ListedObject]:
    """Yield the index objects of a generation whose backup object exists and names another index object."""
    for topic in topics:
        prefix = f"{names.indexes_prefix(store.prefix)}{names.check_topic(topic)}/{generation}_"
        by_object: dict[str, list[ListedObject]] = {}
        for entry in store.list_objects(prefix):
            by_object.setdefault(entry.key.rsplit("/", 1)[-1].partition(".")[0], []).append(entry)
        for name, entries in by_object.items():
            if len(entries) > 1:  # a single index object is the one that its backup object names
                yield from _not_named_by_object(store, topic, name, entries)


def _not_named_by_object(store: Store, topic: str, name: str, entries: list[ListedObject]) -> list[ListedObject]:
    keys = [*store.keys(f"{names.backup_prefix(store.prefix, topic)}{name}.")]
    if len(keys) != 1:
        return []
    try:
        token = store.metadata(keys[0]).get(INDEX_TOKEN_KEY)
    except ObjectMissing:
        return []
    named = [entry for entry in entries if token is not None and entry.key.endswith(f".{token}.parquet")]
    if not named:
        logger.warning("%s names an index object that does not exist; its other index objects are kept", keys[0])
        return []
    return [entry for entry in entries if entry not in named]


# --- files of the key index -------------------------------------------------------------------------------------------


def find_unneeded_index_files(
    store: Store, index: str, *, before: datetime, needed: Collection[str]
) -> Iterator[ListedObject]:
    """Yield the files of a key index below `index` (from `names.key_index_prefix`) that can be removed.

    These are the manifests except the newest `KEPT_MANIFESTS`, and the sorted runs that neither a kept manifest nor
    `needed` names. All of them are older than `before`. `needed` are keys, complete or relative to `index`.
    """
    listed = list(store.list_objects(index))
    # List the manifests again: a manifest that was created after the first listing may name a sorted run in it.
    manifests = list(store.list_objects(key_index_manifests_prefix(index)))
    versions = sorted((v for e in manifests if (v := key_index_version_of(e.key)) is not None), reverse=True)
    newest = set(versions[:KEPT_MANIFESTS])
    kept = [e for e in manifests if key_index_version_of(e.key) in newest or e.modified >= before]
    yield from (e for e in manifests if e not in kept and key_index_version_of(e.key) is not None)
    named = frozenset(needed).union(*(read_strings(store, entry.key) for entry in kept))
    for entry in listed:
        is_sorted_run = not entry.key.startswith(key_index_manifests_prefix(index))
        if is_sorted_run and entry.modified < before and named.isdisjoint((entry.key, entry.key.removeprefix(index))):
            yield entry


def find_ended_histories(
    store: Store, below: str, *, histories: Collection[str], before: datetime
) -> list[ListedObject]:
    """Return the objects below a stream's prefix of key indexes or of sweeps that belong to no history that exists.

    Their unique table was dropped or replaced by a rebuild, or their rebuild was abandoned. `histories`: the names of
    existing histories (`names.history_name`). The objects are older than `before`, and in the order in which they may
    be removed: the staged files of a plan before the plan.
    """
    found = [e for e in store.list_objects(below) if e.modified < before]
    ended = [e for e in found if e.key.removeprefix(below).split("/")[1:2] not in ([h] for h in histories)]
    return sorted(ended, key=lambda entry: entry.key, reverse=True)
