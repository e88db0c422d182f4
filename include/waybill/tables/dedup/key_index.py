"""The key index of one unique table: brought up to date before a sweep, extended after it, merged and rebuilt.

Sweeps, merges and rebuilds may run at the same time and be killed at any point. An index manifest is created if absent,
and the files that it references never change. So the result of a sweep never depends on a merge or a rebuild.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from waybill.base.errors import ConfigError, IndexDamaged
from waybill.config import names
from waybill.config.models import Config, Dedup
from waybill.services.store import Store
from waybill.tables.dedup import index_build
from waybill.tables.dedup.appends import TablePosition, has_no_appends
from waybill.tables.dedup.commit import StagedSweep, position_of_sweep
from waybill.tables.dedup.index.manifest import IndexIdentity, Manifest, load_manifest, update_manifest
from waybill.tables.dedup.index.merge import ForEach, MergePolicy, merge_all, one_by_one
from waybill.tables.dedup.index_build import BuildJob, run_build_task
from waybill.tables.dedup.status import DedupWindow
from waybill.tables.iceberg import translate_storage_errors
from waybill.tables.iceberg.dedup import SweepState, load_dedup_tables, read_sweep_state
from waybill.tables.iceberg.histories import TableHistory
from waybill.tables.staging.services import StagingServices, services_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeyIndex:
    """The key index of one unique table."""

    config: Config
    settings: Dedup
    store: Store
    unique: TableHistory
    prefix: str
    """Prefix of the object keys of the index."""
    identity: IndexIdentity

    @classmethod
    def of(cls, config: Config, name: str, store: Store, unique: TableHistory, identity: IndexIdentity) -> KeyIndex:
        """Return the index of the history of `unique`, of stream `name`, which has dedup."""
        stream = config.stream(name)
        assert stream.dedup is not None
        history = names.history_name(identity.unique, unique.history_id)
        prefix = names.key_index_prefix(store.prefix, name, stream.generation, history)
        return cls(config, stream.dedup, store, unique, prefix, identity)

    def bring_up_to_date(self, horizon_ms: int, *, rebuild: bool = False, for_each: ForEach = one_by_one) -> Manifest:
        """Return an index of all rows in the unique table, which is refreshed; see `waybill.tables.dedup.index_build`.

        `horizon_ms`: that of the unique table's state. `rebuild`: build it from all files.
        """
        job = BuildJob.of_table(self.prefix, self.identity, self.unique, horizon_ms, self.settings)
        work = partial(run_build_task, self.config.storage, self.config.catalog.connection, job)
        build = index_build.rebuild if rebuild else index_build.bring_up_to_date
        return build(self.store, job, self.unique, for_each=for_each, work=work)

    def add_sweep(self, staged: StagedSweep) -> Manifest | None:
        """Add the runs of a sweep that is committed, and return the saved manifest; refreshes the unique table.

        Returns None if the manifest does not cover exactly the rows before the sweep: a rival has added the runs, or
        rows are missing, or the sweep was rolled back. Then the next sweep adds the missing rows from the table.
        """
        assert staged.state.swept is not None
        self.unique.refresh()
        position = position_of_sweep(self.unique, staged.state.swept)
        if position is None or position.snapshot_id is None:
            return None
        sequence, snapshot_id = position.sequence, position.snapshot_id

        def with_sweep(manifest: Manifest | None) -> Manifest | None:
            if manifest is None:
                return None
            if not has_no_appends(self.unique, TablePosition(manifest.covers_snapshot, manifest.covers), position):
                return None
            return manifest.with_sweep(staged.covers, sequence, snapshot_id, staged.runs, staged.state.horizon_ms)

        return update_manifest(self.store, self.prefix, self.identity, with_sweep)

    def load(self) -> Manifest | None:
        """Return the newest usable manifest; None: there is none."""
        return load_manifest(self.store, self.prefix, self.identity).manifest

    def merge(self, state: SweepState) -> Manifest | None:
        """Merge sorted runs, and return the manifest after that; see `waybill.tables.dedup.index.merge.merge_all`."""
        window = DedupWindow.of(state, self.settings)
        policy = MergePolicy.of(self.settings.window_ms, self.settings.memory, window.effective_ms)
        return merge_all(self.store, self.prefix, self.identity, policy, state.horizon_ms)


# --- maintenance ---


def rebuild_index(config: Config, name: str) -> Manifest | None:
    """Rebuild the index of stream `name` in this process; return None if there is no unique table yet.

    Raises `ConfigError` for a stream without dedup, `PlanUnusable` when a file of the unique table does not exist,
    `DamagedFile`, `CommitConflict`, `ProgressLost`, or one of the retriable `StoreUnavailable` and
    `CatalogUnavailable`.
    """
    with open_index(config, name) as opened:
        if opened is None:
            return None
        index, state = opened
        index.bring_up_to_date(state.horizon_ms, rebuild=True)
        return index.merge(state)


def merge_index(config: Config, name: str, services: StagingServices | None = None) -> Manifest | None:
    """Merge sorted runs of stream `name` in this process, and rebuild a damaged index; None: there is no index yet.

    `services`: the services to use; by default the function opens and closes its own. Raises what `rebuild_index`
    raises.
    """
    with open_index(config, name, services) as opened:
        before = None if opened is None else opened[0].load()
        if opened is None or before is None:
            logger.info("%s: there is no key index yet", name)
            return None
        index, state = opened
        try:
            after = index.merge(state)
        except IndexDamaged as error:
            logger.warning("%s: the key index is rebuilt: %s", name, error)
            index.bring_up_to_date(state.horizon_ms, rebuild=True)
            after = index.merge(state)
        if after is not None:
            merged = "nothing was merged" if after == before else f"it had {len(before.runs):,} runs"
            logger.info(
                "%s: the key index has %s keys in %s runs, %.1f MB; %s",
                *(name, f"{after.keys:,}", f"{len(after.runs):,}", after.size_bytes / 1e6, merged),
            )
        return after


@contextmanager
def open_index(
    config: Config, name: str, services: StagingServices | None = None
) -> Iterator[tuple[KeyIndex, SweepState] | None]:
    """Open the index of stream `name`, with the state of its unique table; None: there is no unique table yet.

    Raises `ConfigError` for a stream without dedup.
    """
    stream = config.stream(name)
    if stream.dedup is None:
        raise ConfigError(f"stream {name!r} has no dedup: add a section `dedup` to it in the config ({{}} is enough)")
    with services_of(config, services) as opened:
        tables = load_dedup_tables(opened.catalog, stream)
        if tables is None:
            yield None
            return
        unique = tables.unique
        identity = IndexIdentity.of_table(unique, stream.dedup.key, stream.dedup.buckets)
        with translate_storage_errors():
            state = read_sweep_state(unique.metadata, ".".join(unique.name()))
            yield KeyIndex.of(config, name, opened.store, unique, identity), state
