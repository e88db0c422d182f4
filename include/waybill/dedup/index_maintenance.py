"""Upkeep of a key index between sweeps: many small runs merged into few, or all of it built anew.

Both may run beside sweeps and each other, and die at any point: an index is a manifest that is created if absent, and
what it is made of never changes. What sweeps decide does not depend on it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from waybill import names
from waybill.config import Config, Dedup
from waybill.dedup.alert import Window
from waybill.dedup.index.manifest import IndexOf, Manifest, load
from waybill.dedup.index.merge import MergePolicy, merge_all
from waybill.dedup.index_build import BuildJob, rebuild
from waybill.errors import ConfigError, IndexDamaged
from waybill.store import Store
from waybill.tables import catalog_of, files_reachable
from waybill.tables.dedup import DedupTables, SweepState, load_dedup_tables, read_sweep_state

__all__ = ["merge_index", "rebuild_index"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Index:
    """An index, and the table that it is of."""

    stream: str
    settings: Dedup
    store: Store
    tables: DedupTables
    state: SweepState
    prefix: str
    """What the keys of its files start with."""
    of: IndexOf

    def rebuild(self) -> Manifest:
        unique = self.tables.unique
        job = BuildJob.of_table(self.prefix, self.of, unique, self.state.horizon_ms, self.settings)
        return rebuild(self.store, job, unique)

    def merge(self) -> Manifest | None:
        window = Window.of(self.state, self.settings)
        policy = MergePolicy.of(self.settings.window_ms, self.settings.memory, window.effective_ms)
        return merge_all(self.store, self.prefix, self.of, policy, self.state.horizon_ms)


def rebuild_index(config: Config, name: str) -> Manifest | None:
    """Build the index of stream `name` anew, in this process; None: there is no unique table yet.

    Raises `ConfigError` for a stream without dedup, `PlanUnusable` when a file of the unique table is gone,
    `DamagedFile`, `CommitConflict`, `ProgressLost`, or one of the retriable `StoreUnavailable` and
    `CatalogUnavailable`.
    """
    with _open(config, name) as index:
        if index is None:
            return None
        index.rebuild()
        return index.merge()


def merge_index(config: Config, name: str) -> Manifest | None:
    """Merge what there is to merge, in this process; None: there is no index yet. One that is damaged is built anew.

    Raises what `rebuild_index` raises.
    """
    with _open(config, name) as index:
        before = None if index is None else load(index.store, index.prefix, index.of).manifest
        if index is None or before is None:
            logger.info("%s: there is no key index yet", name)
            return None
        try:
            after = index.merge()
        except IndexDamaged as error:
            logger.warning("%s: the key index is built anew: %s", name, error)
            index.rebuild()
            after = index.merge()
        if after is not None:
            merged = "there was nothing to merge" if after == before else f"it had {len(before.runs):,} runs"
            logger.info(
                "%s: the key index has %s keys in %s runs, %.1f MB; %s",
                *(name, f"{after.keys:,}", f"{len(after.runs):,}", after.size_bytes / 1e6, merged),
            )
        return after


@contextmanager
def _open(config: Config, name: str) -> Iterator[_Index | None]:
    stream = config.stream(name)
    if stream.dedup is None:
        raise ConfigError(f"stream {name!r} has no dedup: give it a section `dedup` in the config ({{}} will do)")
    with Store.of(config.storage) as store, catalog_of(config) as catalog:
        tables = load_dedup_tables(catalog, stream)
        if tables is None:
            yield None
            return
        unique = str(tables.unique.metadata.table_uuid)
        with files_reachable():
            yield _Index(
                stream=name,
                settings=stream.dedup,
                store=store,
                tables=tables,
                state=read_sweep_state(tables.unique.metadata, ".".join(tables.unique.name())),
                prefix=names.key_index_prefix(store.prefix, name, stream.generation, unique),
                of=IndexOf.of_table(tables.unique, stream.dedup.key, stream.dedup.buckets),
            )
