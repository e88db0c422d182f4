"""The manifest of a key index: which runs it is made of, and up to where they cover the unique table.

A manifest is an object that is created if absent, version n+1 after version n. Whoever is refused, since another was
first, looks again. So sweeps and merges change the index at the same time without a lock, and who reads one version
reads an index that fits together: the files of its runs never change.

The index is derived from the unique table. A manifest that is damaged, or of another key, is passed over, which costs
a rebuild and never an answer.

The size of a key index as a bound, and what it makes of the window.

An index that would pass its budget loses its oldest runs: they leave the manifest, and their files go with the next
maintenance. The horizon rises to what is still covered as a whole, in the state of the sweep that is committed: so all
who judge after it, with this index or with one that is built anew, judge alike.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

import crc32c

from waybill.dedup.candidates import UNBOUNDED_MS
from waybill.dedup.index.runs import Files, Run
from waybill.documents import read_document
from waybill.errors import CommitConflict, GenerationConflict, ObjectAlreadyThere, ObjectMissing
from waybill.names import key_index_manifest_key, key_index_manifests_prefix, key_index_version_of

if TYPE_CHECKING:
    from pyiceberg.table import Table

__all__ = [
    "HASH",
    "IndexFiles",
    "IndexOf",
    "Loaded",
    "Manifest",
    "effective_window_ms",
    "horizon_within",
    "index_bytes",
    "load",
    "save_next",
    "update",
]

logger = logging.getLogger(__name__)

_VERSION = 1
_ATTEMPTS = 10
_RUN_FIELDS = [field.name for field in fields(Run)]
_PATHS = ("path", "filter_path")

HASH = "siphash-2-4-128"
"""How keys are hashed: `waybill.dedup.hashing`."""


class IndexFiles(Files, Protocol):
    """Where the index's files lie, and what they are called: a `Store`."""

    def keys(self, prefix: str) -> Iterator[str]:
        """The keys that start with `prefix`, in order."""


@dataclass(frozen=True, slots=True)
class IndexOf:
    """What an index is of. One of anything else is of no use."""

    unique: str
    """The uuid of the unique table; it is the key of the hash as well."""
    key: tuple[str, ...]
    """The key columns, in order."""
    buckets: int
    hash: str = HASH

    @classmethod
    def of_table(cls, unique: Table, key: tuple[str, ...], buckets: int) -> IndexOf:
        """Of that unique table."""
        return cls(str(unique.metadata.table_uuid), key, buckets)

    def __str__(self) -> str:
        return f"table {self.unique}, key {', '.join(self.key)}, {self.buckets} buckets, hash {self.hash}"


@dataclass(frozen=True, slots=True)
class Manifest:
    """A version of the index. Nobody changes one: each change gives another."""

    of: IndexOf
    covers: int
    """All rows of the unique table up to this sequence number that arrived at or after the horizon are in the runs."""
    horizon_ms: int
    """Entries that arrived before it do not count, even if they are still stored. Epoch ms."""
    runs: tuple[Run, ...]
    covers_snapshot: int | None = None
    """The snapshot of that sequence number; None: the table had none."""
    version: int = 0
    """0: not saved yet."""

    @classmethod
    def empty(cls, of: IndexOf) -> Manifest:
        """The index of a table without rows."""
        return cls(of, 0, UNBOUNDED_MS, ())

    @property
    def size_bytes(self) -> int:
        """Of all runs and their filters."""
        return sum(run.bytes + run.filter_bytes for run in self.runs)

    @property
    def keys(self) -> int:
        """Entries of all runs."""
        return sum(run.keys for run in self.runs)

    def bucket(self, bucket: int) -> tuple[Run, ...]:
        """The runs of one bucket."""
        return tuple(run for run in self.runs if run.bucket == bucket)

    def above(self, horizon_ms: int) -> Manifest:
        """With the horizon there, if it is not further already, and without the runs that are below it as a whole."""
        horizon_ms = max(horizon_ms, self.horizon_ms)
        runs = tuple(run for run in self.runs if run.max_arrived_ms >= horizon_ms)
        return replace(self, horizon_ms=horizon_ms, runs=runs)

    def with_rows(
        self, since: int, sequence: int, snapshot_id: int, runs: Iterable[Run], horizon_ms: int
    ) -> Manifest | None:
        """With all rows that the unique table gained between two of its sequence numbers, and the horizon after that.

        `since`: of the snapshot after which rows were added, by the snapshot `snapshot_id` (and others between, which
        add none) of number `sequence`. None: there is nothing to add, since a rival did; or this manifest does not
        cover what is before: who sweeps next catches up.
        """
        if not since <= self.covers < sequence:
            return None
        # What they say is what was planned: a commit of somebody else may have come before theirs.
        found = (replace(run, first_sequence=since + 1, last_sequence=sequence) for run in runs)
        covering = replace(self, covers=sequence, covers_snapshot=snapshot_id, runs=(*self.runs, *found))
        return covering.above(horizon_ms)

    def with_merged(self, merged: Sequence[Run], by: Run | None) -> Manifest | None:
        """With one run in the place of several (or with none: nothing of them is left above the horizon).

        None: they are not all there any more, so another has merged them, or has built the index anew.
        """
        gone = {run.path for run in merged}
        left = tuple(run for run in self.runs if run.path not in gone)
        if len(left) + len(gone) != len(self.runs):
            return None
        return replace(self, runs=left if by is None else (*left, by))

    def to_json(self, index: str) -> bytes:
        """The document of `"v": 1`; `index`: what the keys of the index's files start with."""
        content = {
            "unique": self.of.unique,
            "key": list(self.of.key),
            "buckets": self.of.buckets,
            "hash": self.of.hash,
            "covers": self.covers,
            "covers_snapshot": self.covers_snapshot,
            "horizon_ms": self.horizon_ms,
            "fields": _RUN_FIELDS,
            "runs": [_run_values(run, index) for run in self.runs],
        }
        return _compact({"v": _VERSION, "crc32c": crc32c.crc32c(_compact(content)), "index": content})

    @classmethod
    def from_json(cls, index: str, version: int, data: bytes) -> Manifest:
        """The inverse of `to_json`. Raises `ValueError`, `KeyError` or `TypeError` for what is no such document."""
        document = read_document(data, _VERSION, f"manifest {version} of the key index {index}")
        content = document["index"]
        if document["crc32c"] != crc32c.crc32c(_compact(content)):
            raise ValueError("its checksum differs")
        of = IndexOf(content["unique"], tuple(content["key"]), content["buckets"], content["hash"])
        runs = (_run(dict(zip(content["fields"], values, strict=True)), index) for values in content["runs"])
        return cls(
            of=of,
            covers=content["covers"],
            covers_snapshot=content["covers_snapshot"],
            horizon_ms=content["horizon_ms"],
            runs=tuple(runs),
            version=version,
        )


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was found of an index."""

    manifest: Manifest | None
    """The newest one that is of use."""
    newest: int
    """The newest version there is, of use or not; 0: none. The next one to save is the one after it."""


def load(files: IndexFiles, index: str, of: IndexOf) -> Loaded:
    """The newest manifest below `index` that is one of `of`. What is passed over is logged, with the reason.

    Raises `StoreUnavailable` when S3 does not answer.
    """
    found = (key_index_version_of(key) for key in files.keys(key_index_manifests_prefix(index)))
    versions = sorted(version for version in found if version is not None)
    other = None
    for version in reversed(versions):
        manifest = _read(files, index, version)
        if manifest is None:
            continue
        if manifest.of == of:
            return Loaded(manifest, versions[-1])
        if manifest.of != other:  # a config that was changed: said once, and not of each version
            other = manifest.of
            logger.warning("key index %s: manifest %d is passed over: of %s; wanted: %s", index, version, other, of)
    if not versions:
        logger.info("key index %s: there is none yet", index)
    return Loaded(None, versions[-1] if versions else 0)


def _read(files: IndexFiles, index: str, version: int) -> Manifest | None:
    try:
        return Manifest.from_json(index, version, files.read(key_index_manifest_key(index, version)))
    except (ValueError, KeyError, TypeError, AttributeError, GenerationConflict, ObjectMissing) as error:
        logger.warning("key index %s: manifest %d is passed over, it cannot be read: %s", index, version, error)
        return None


def save_next(files: IndexFiles, index: str, newest: int, manifest: Manifest) -> Manifest | None:
    """The manifest as version `newest` + 1. None: refused, since another has saved that one; load, and look again."""
    saved = replace(manifest, version=newest + 1)
    key = key_index_manifest_key(index, saved.version)
    data = saved.to_json(index)
    try:
        files.create_if_absent(key, data)
    except ObjectAlreadyThere:
        # By an earlier try of this very call, maybe, whose answer was lost.
        return saved if files.read(key) == data else None
    return saved


def update(
    files: IndexFiles, index: str, of: IndexOf, change: Callable[[Manifest | None], Manifest | None]
) -> Manifest | None:
    """Save what `change` makes of the newest manifest, as often as it takes; what was saved, or None if `change` gave
    None, as it may when there is nothing (more) to do. `change` gets None where there is no manifest of use.

    Raises `CommitConflict` when others save faster than this can, `StoreUnavailable` when S3 does not answer.
    """
    for _ in range(_ATTEMPTS):
        loaded = load(files, index, of)
        changed = change(loaded.manifest)
        if changed is None:
            return None
        saved = save_next(files, index, loaded.newest, changed)
        if saved is not None:
            return saved
    raise CommitConflict(f"key index {index}: {_ATTEMPTS} manifests were refused, each because another came first")


def _compact(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _run_values(run: Run, index: str) -> list[Any]:
    """A run's fields, with its files' keys as they are below `index`."""
    values = dict(zip(_RUN_FIELDS, astuple(run), strict=True))
    return list((values | {name: values[name].removeprefix(index) for name in _PATHS}).values())


def _run(values: dict[str, Any], index: str) -> Run:
    return Run(**(values | {name: index + values[name] for name in _PATHS}))


def index_bytes(runs: Iterable[Run]) -> int:
    """The size of runs, their filters included."""
    return sum(run.bytes + run.filter_bytes for run in runs)


def horizon_within(runs: Iterable[Run], budget_bytes: int, horizon_ms: int) -> int:
    """The horizon, epoch ms, from which on the runs fit into the budget; `horizon_ms` if they do.

    `runs`: all of the index, those of the sweep in hand included. A run leaves when the last of its entries is below
    the horizon. So the window shrinks by the span of a run: by no more than a sixteenth of it once runs are merged
    (`waybill.dedup.index.merge`).
    """
    kept = sorted((run for run in runs if run.max_arrived_ms >= horizon_ms), key=lambda run: run.max_arrived_ms)
    left = index_bytes(kept)
    for run in kept:
        # A run whose last arrival is that of one that left is below the horizon as well.
        if left <= budget_bytes and run.max_arrived_ms >= horizon_ms:
            break
        left -= run.bytes + run.filter_bytes
        horizon_ms = run.max_arrived_ms + 1
    return horizon_ms


def effective_window_ms(window_ms: int, horizon_ms: int, newest_arrival_ms: int) -> int:
    """How far back a message that arrives at `newest_arrival_ms` is compared with others: the window, or less."""
    return min(window_ms, max(newest_arrival_ms - horizon_ms, 0))
