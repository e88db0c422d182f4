"""The index manifest: which sorted runs make up the key index, and up to where they cover the unique table.

A manifest is an object that is created if absent: version n+1 after version n. If another process has created the same
version, a process loads the manifests again and repeats its change. So sweeps and merges change the index at the same
time without a lock, and every version is consistent: the files of its runs never change.

The index is derived from the unique table. So a manifest that is damaged, or that belongs to another key, is skipped:
this causes a rebuild, but never a wrong answer.

`horizon_within` bounds the size of the index. An index that would exceed its budget loses its oldest runs: they leave
the manifest, and maintenance deletes their files later. The horizon rises to the oldest arrival that the index still
covers, and is committed in the state of the sweep. So all later sweeps make the same decisions, with this index or a
rebuilt one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

import crc32c

from waybill.base.documents import Document, compact
from waybill.base.errors import CommitConflict, DocumentTooNew, ObjectExists, ObjectMissing
from waybill.config.names import key_index_manifest_key, key_index_manifests_prefix, key_index_version_of
from waybill.tables.dedup.index.sorted_runs import FileStore, SortedRun
from waybill.tables.iceberg.dedup import NO_HORIZON_MS

if TYPE_CHECKING:
    from pyiceberg.table import Table

logger = logging.getLogger(__name__)

HASH = "siphash-2-4-128"
"""The hash function of keys: `waybill.tables.dedup.keys`."""

_DOCUMENT = Document(name="manifest {where}")
_ATTEMPTS = 10
_RUN_FIELDS = [field.name for field in fields(SortedRun)]
_PATHS = ("path", "filter_path")


class IndexStore(FileStore, Protocol):
    """Reads, creates and lists the files of the index: a `Store`."""

    def keys(self, prefix: str) -> Iterator[str]:
        """Yield the keys that start with `prefix`, in order."""


@dataclass(frozen=True, slots=True)
class IndexIdentity:
    """Table, key, buckets and hash of an index. A manifest with another identity cannot be used."""

    unique: str
    """UUID of the unique table; it is also the secret of the hash."""
    key: tuple[str, ...]
    """The key columns, in order."""
    buckets: int
    hash: str = HASH

    @classmethod
    def of_table(cls, unique: Table, key: tuple[str, ...], buckets: int) -> IndexIdentity:
        """Return the identity of an index of this unique table."""
        return cls(str(unique.metadata.table_uuid), key, buckets)

    def __str__(self) -> str:
        return f"table {self.unique}, key {', '.join(self.key)}, {self.buckets} buckets, hash {self.hash}"


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version of the index. It is immutable: each change returns another manifest."""

    identity: IndexIdentity
    covers: int
    """The runs contain all rows of the unique table up to this sequence number that arrived at or after the horizon."""
    horizon_ms: int
    """Entries that arrived before it are ignored, even if the runs still contain them. Epoch ms."""
    runs: tuple[SortedRun, ...]
    covers_snapshot: int | None = None
    """Snapshot id of that sequence number; None: the table had no snapshot."""
    version: int = 0
    """0: not saved yet."""

    @classmethod
    def empty(cls, identity: IndexIdentity) -> Manifest:
        """Return the index of a table without rows."""
        return cls(identity, 0, NO_HORIZON_MS, ())

    @property
    def size_bytes(self) -> int:
        """Size of all run and filter files."""
        return index_bytes(self.runs)

    @property
    def keys(self) -> int:
        """Number of entries of all runs."""
        return sum(run.keys for run in self.runs)

    def bucket(self, bucket: int) -> tuple[SortedRun, ...]:
        """Return the runs of one bucket."""
        return tuple(run for run in self.runs if run.bucket == bucket)

    def with_horizon(self, horizon_ms: int) -> Manifest:
        """Raise the horizon to `horizon_ms` if it is lower, and drop the runs that are below it as a whole."""
        horizon_ms = max(horizon_ms, self.horizon_ms)
        runs = tuple(run for run in self.runs if run.max_arrived_ms >= horizon_ms)
        return replace(self, horizon_ms=horizon_ms, runs=runs)

    def with_sweep(
        self, since: int, sequence: int, snapshot_id: int, runs: Iterable[SortedRun], horizon_ms: int
    ) -> Manifest | None:
        """Add the runs of a sweep, which contain all rows added to the unique table after sequence number `since`.

        `sequence`, `snapshot_id`: the sweep's own snapshot; other snapshots in between may exist that add no row.
        `horizon_ms`: the horizon after the sweep.

        Returns None if nothing can be added: a rival has added the rows, or this manifest does not cover all rows
        before them; then the next sweep reads the missing rows from the table.
        """
        if not since <= self.covers < sequence:
            return None
        # The plan guessed the sequence number. Another writer may have committed in between: use the real number.
        committed = (replace(run, first_sequence=since + 1, last_sequence=sequence) for run in runs)
        covering = replace(self, covers=sequence, covers_snapshot=snapshot_id, runs=(*self.runs, *committed))
        return covering.with_horizon(horizon_ms)

    def with_merged(self, merged: Sequence[SortedRun], result: SortedRun | None) -> Manifest | None:
        """Replace runs by the run they were merged into; None: no entry of them is above the horizon.

        Returns None if this manifest lacks one of the merged runs: another process merged it or rebuilt the index.
        """
        removed = {run.path for run in merged}
        remaining = tuple(run for run in self.runs if run.path not in removed)
        if len(remaining) + len(removed) != len(self.runs):
            return None
        return replace(self, runs=remaining if result is None else (*remaining, result))

    def to_json(self, index: str) -> bytes:
        """Return the document of `"v": 1`. `index`: prefix of the object keys of the index."""
        content = {
            "unique": self.identity.unique,
            "key": list(self.identity.key),
            "buckets": self.identity.buckets,
            "hash": self.identity.hash,
            "covers": self.covers,
            "covers_snapshot": self.covers_snapshot,
            "horizon_ms": self.horizon_ms,
            "fields": _RUN_FIELDS,
            "runs": [_run_values(run, index) for run in self.runs],
        }
        return _DOCUMENT.write({"crc32c": crc32c.crc32c(compact(content)), "index": content})

    @classmethod
    def from_json(cls, index: str, version: int, data: bytes) -> Manifest:
        """Parse what `to_json` returns. Raises `ValueError`, `KeyError` or `TypeError` for any other document."""
        document = _DOCUMENT.read(data, f"{version} of the key index {index}")
        content = document["index"]
        if document["crc32c"] != crc32c.crc32c(compact(content)):
            raise ValueError("its checksum differs")
        identity = IndexIdentity(content["unique"], tuple(content["key"]), content["buckets"], content["hash"])
        runs = (_parse_run(dict(zip(content["fields"], values, strict=True)), index) for values in content["runs"])
        return cls(
            identity=identity,
            covers=content["covers"],
            covers_snapshot=content["covers_snapshot"],
            horizon_ms=content["horizon_ms"],
            runs=tuple(runs),
            version=version,
        )


# --- stored versions ---


@dataclass(frozen=True, slots=True)
class LoadedManifest:
    """The state of an index's stored manifests."""

    manifest: Manifest | None
    """The newest usable manifest; None: there is none."""
    newest_version: int
    """The newest stored version, usable or not; 0: none. The next version to save is the one after it."""


def load_manifest(files: IndexStore, index: str, identity: IndexIdentity) -> LoadedManifest:
    """Load the newest manifest below the prefix `index` that has this identity; log why others are skipped.

    Raises `StoreUnavailable` when S3 does not answer.
    """
    stored = (key_index_version_of(key) for key in files.keys(key_index_manifests_prefix(index)))
    versions = sorted(version for version in stored if version is not None)
    other = None
    for version in reversed(versions):
        manifest = _read_manifest(files, index, version)
        if manifest is None:
            continue
        if manifest.identity == identity:
            return LoadedManifest(manifest, versions[-1])
        if manifest.identity != other:  # after a config change: log it once, not for each older version
            other = manifest.identity
            logger.warning("key index %s: manifest %d is skipped: of %s; wanted: %s", index, version, other, identity)
    if not versions:
        logger.info("key index %s: there is no manifest yet", index)
    return LoadedManifest(None, versions[-1] if versions else 0)


def _read_manifest(files: IndexStore, index: str, version: int) -> Manifest | None:
    try:
        return Manifest.from_json(index, version, files.read(key_index_manifest_key(index, version)))
    except (ValueError, KeyError, TypeError, AttributeError, DocumentTooNew, ObjectMissing) as error:
        logger.warning("key index %s: manifest %d is skipped, it cannot be read: %s", index, version, error)
        return None


def save_manifest(files: IndexStore, index: str, newest_version: int, manifest: Manifest) -> Manifest | None:
    """Save the manifest as version `newest_version` + 1 and return it with its version.

    Returns None if another process has saved this version: load the manifests and repeat the change.
    """
    saved = replace(manifest, version=newest_version + 1)
    key = key_index_manifest_key(index, saved.version)
    data = saved.to_json(index)
    try:
        files.create_if_absent(key, data)
    except ObjectExists:
        # This process may have created the object in an attempt whose response was lost.
        return saved if files.read(key) == data else None
    return saved


def update_manifest(
    files: IndexStore, index: str, identity: IndexIdentity, change: Callable[[Manifest | None], Manifest | None]
) -> Manifest | None:
    """Apply `change` to the newest manifest and save the result; repeat both if another process was faster.

    `change` is called with None if there is no usable manifest. It returns None if nothing is left to change; then this
    returns None.

    Raises `CommitConflict` when other processes save faster than this one can, `StoreUnavailable` when S3 does not
    answer.
    """
    for _ in range(_ATTEMPTS):
        loaded = load_manifest(files, index, identity)
        changed = change(loaded.manifest)
        if changed is None:
            return None
        saved = save_manifest(files, index, loaded.newest_version, changed)
        if saved is not None:
            return saved
    raise CommitConflict(f"key index {index}: {_ATTEMPTS} manifests were refused, each because another came first")


# --- size ---


def index_bytes(runs: Iterable[SortedRun]) -> int:
    """Return the size of these runs' files, filters included."""
    return sum(run.bytes + run.filter_bytes for run in runs)


def horizon_within(runs: Iterable[SortedRun], budget_bytes: int, horizon_ms: int) -> int:
    """Return the horizon, epoch ms, from which the runs fit into the budget; `horizon_ms` if they do.

    `runs`: all of the index, with those of the current sweep. A run leaves the index when its last entry is below the
    horizon. So the window shrinks by the time span of a run: by a sixteenth at most once runs are merged
    (`waybill.tables.dedup.index.merge`).
    """
    kept = sorted((run for run in runs if run.max_arrived_ms >= horizon_ms), key=lambda run: run.max_arrived_ms)
    remaining_bytes = index_bytes(kept)
    for run in kept:
        # A run with the same last arrival as one that left is below the horizon too.
        if remaining_bytes <= budget_bytes and run.max_arrived_ms >= horizon_ms:
            break
        remaining_bytes -= run.bytes + run.filter_bytes
        horizon_ms = run.max_arrived_ms + 1
    return horizon_ms


def effective_window_ms(window_ms: int, horizon_ms: int, newest_arrival_ms: int) -> int:
    """Return how far back a message that arrives at `newest_arrival_ms` is compared: the window, or less."""
    return min(window_ms, max(newest_arrival_ms - horizon_ms, 0))


# --- JSON ---


def _run_values(run: SortedRun, index: str) -> list[Any]:
    """Return a run's fields, with the object keys of its files relative to `index`."""
    values = {name: getattr(run, name) for name in _RUN_FIELDS}
    return list((values | {name: values[name].removeprefix(index) for name in _PATHS}).values())


def _parse_run(values: dict[str, Any], index: str) -> SortedRun:
    return SortedRun(**(values | {name: index + values[name] for name in _PATHS}))
