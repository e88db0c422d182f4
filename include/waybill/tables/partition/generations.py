"""Promote a generation of a stream: consumers then read its rows. To undo it, promote the earlier generation again.

The decision is stored first, with who made it, when and why. The quarantine follows before the main table: if the
process dies in between, the same command finishes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from pyiceberg.catalog import Catalog

from waybill.base.documents import Document
from waybill.base.errors import DecisionRefused
from waybill.config.models import Config
from waybill.config.names import generation_change_key, generation_changes_prefix
from waybill.tables.iceberg import Progress, StreamTables, head_of, load_tables, metadata_at, read_progress
from waybill.tables.iceberg.generations import generations_of, live_generation, make_live
from waybill.tables.staging.driver import OnStep
from waybill.tables.staging.services import StagingServices, services_of

_DOCUMENT = Document()


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation that the stream's table holds."""

    number: int
    is_live: bool
    rows: int
    progress: Progress
    updated_at: datetime | None
    """When its newest snapshot was written."""


def list_generations(catalog: Catalog, config: Config, name: str) -> list[Generation]:
    """Return the generations in the table of stream `name`; none before the first partition run.

    Raises `ProgressLost` or `CatalogUnavailable`.
    """
    tables = load_tables(catalog, config.stream(name))
    if tables is None:
        return []
    main, live = tables.main, live_generation(tables.main)
    found = []
    for number, branch in generations_of(main).items():
        head = head_of(main.metadata, branch)
        summary = head.summary.additional_properties if head is not None and head.summary else {}
        progress = read_progress(metadata_at(main.metadata, branch), ".".join(main.name()))
        updated = None if head is None else datetime.fromtimestamp(head.timestamp_ms / 1000, UTC)
        found.append(Generation(number, number == live, int(summary.get("total-records", 0)), progress, updated))
    return found


def promote_generation(
    config: Config,
    name: str,
    generation: int,
    *,
    by: str,
    reason: str,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    on_step: OnStep = lambda _: None,
    services: StagingServices | None = None,
) -> bool:
    """Let consumers of stream `name` read another generation, and return whether it was another one before.

    Calls `on_step` with `decided`, `quarantine_promoted` and `promoted`.

    Raises `DecisionRefused` if the table does not hold the generation, or another change was decided in the meantime;
    `CommitConflict`, or one of the retriable
    `StoreUnavailable` and `CatalogUnavailable`.
    """
    with services_of(config, services) as opened:
        tables = _tables_with(opened.catalog, config, name, generation)
        before = live_generation(tables.main)
        if before == generation:
            make_live(tables.quarantine, generation)  # a process that was killed in between has not done it
            return False
        at = now()
        fields = {"from": before, "to": generation, "by": by, "reason": reason, "at": at.isoformat()}
        key = generation_change_key(opened.store.prefix, name, at)
        opened.store.create_or_read_existing(key, _DOCUMENT.write(fields))
        on_step("decided")

        def check_newest() -> None:
            """Raise if another change was decided since then: a process that was frozen must not revert it."""
            newest = max(opened.store.keys(generation_changes_prefix(opened.store.prefix, name)))
            if newest != key:
                raise DecisionRefused(
                    f"{name}: another change of the live generation was decided since: {newest}. `waybill generation "
                    f"ls {name}` shows what consumers read now; repeat the command if it is still wanted"
                )

        make_live(tables.quarantine, generation, check_newest)
        on_step("quarantine_promoted")
        make_live(tables.main, generation, check_newest)
        on_step("promoted")
        return True


def _tables_with(catalog: Catalog, config: Config, name: str, generation: int) -> StreamTables:
    tables = load_tables(catalog, config.stream(name))
    known = [] if tables is None else list(generations_of(tables.main))
    if tables is None or generation not in known:
        listed = ", ".join(map(str, known)) or "none"
        raise DecisionRefused(
            f"{name}: the table {config.stream(name).table} does not hold generation {generation}; it holds: {listed}. "
            f"A partition run of a stream with `generation: {generation}` builds it"
        )
    return tables
