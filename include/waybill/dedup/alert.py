"""How far back sweeps see, and the alert about a window that is not what the config promises.

Sweeps go on all the same: a message that comes again after a longer time than they see back counts as new. What the
last sweep has committed says how far that is, so that whoever looks after it can raise the alert.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pyiceberg.table import Table

from waybill import names
from waybill.config import Config, Dedup
from waybill.config.values import format_size
from waybill.dedup.index.manifest import IndexOf, Manifest, effective_window_ms, load
from waybill.errors import WindowShrunk
from waybill.store import Store
from waybill.tables import catalog_of
from waybill.tables.dedup import SweepState, load_dedup_tables, read_sweep_state

__all__ = ["Window", "alert_of", "check_window", "newest_manifest"]

logger = logging.getLogger(__name__)

_UNITS_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000}
_MIB, _GIB = 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True)
class Window:
    """How far back in arrival time a message is compared with others."""

    effective_ms: int
    promised_ms: int
    """`dedup.window`."""
    floor_ms: int
    """`dedup.floor`."""

    @classmethod
    def of(cls, state: SweepState, settings: Dedup) -> Window:
        """As the last sweep left it, for a message that comes when the newest one came."""
        promised = settings.window_ms
        newest = max(state.watermarks.values(), default=None)
        effective = promised if newest is None else effective_window_ms(promised, state.horizon_ms, newest)
        return cls(effective, promised, settings.floor_ms)

    @property
    def is_whole(self) -> bool:
        """Whether it is what the config promises."""
        return self.effective_ms >= self.promised_ms

    @property
    def is_below_floor(self) -> bool:
        """Whether it is less than the config allows at all."""
        return self.effective_ms < self.floor_ms

    def __str__(self) -> str:
        return f"{_span(self.effective_ms)} of {_span(self.promised_ms)} (floor {_span(self.floor_ms)})"


def alert_of(stream: str, settings: Dedup, window: Window, index: Manifest | None) -> str | None:
    """What is to be said about a window; None: it is as it should be.

    Less than is promised is an alert if the budget is the reason: an index that takes less than half of it has lost
    nothing to it. Then `dedup.window` was raised, and the window grows by itself, as the keys come that it is made of.
    """
    lost_to_budget = index is None or 2 * index.size_bytes >= settings.index_budget_bytes
    if window.is_whole or not (window.is_below_floor or lost_to_budget):
        return None
    below = "dedup.floor" if window.is_below_floor else "dedup.window"
    needed = None if index is None else _needed_bytes(window, index)
    remedy = (
        f"Raise dedup.index_budget_bytes{_to(needed)}, and the window grows as time goes on; or promise less in "
        f"dedup.window"
        if needed is None or needed > settings.index_budget_bytes
        else "That is room enough: the window grows as time goes on, and nothing is to be done"
    )
    return (
        f"{stream}: dedup sees {_span(window.effective_ms)} back, less than {below}: {_span(window.promised_ms)} are "
        f"promised (dedup.window), and the floor is {_span(window.floor_ms)} (dedup.floor). A message that comes again "
        f"later than that counts as new. The key index has {_index_text(index)}{_filled(settings, index)}. {remedy}"
    )


def _index_text(index: Manifest | None) -> str:
    return "no manifest" if index is None else f"{index.keys:,} keys in {index.size_bytes / 1e6:,.1f} MB"


def _filled(settings: Dedup, index: Manifest | None) -> str:
    if index is None:
        return ""
    budget = settings.index_budget_bytes
    return f", {index.size_bytes / budget:.1%} of the {format_size(budget)} that it may have"


def _needed_bytes(window: Window, index: Manifest) -> int | None:
    """About how much the whole window takes, going by how long the runs of each bucket go back; None: there are none.

    That is longer than sweeps see back: of a bucket, more may be left than of the one that lost most.
    """
    first_ms: dict[int, int] = {}
    for run in index.runs:
        first_ms[run.bucket] = min(run.min_arrived_ms, first_ms.get(run.bucket, run.min_arrived_ms))
    newest_ms = max((run.max_arrived_ms for run in index.runs), default=0)
    spans_ms = sum(newest_ms - first for first in first_ms.values())
    return index.size_bytes * index.of.buckets * window.promised_ms // spans_ms if spans_ms else None


def _to(needed_bytes: int | None) -> str:
    """What to write there, in whole units."""
    if needed_bytes is None:
        return ""
    unit = _GIB if needed_bytes > 10 * _GIB else _MIB
    return f" to {format_size(-(-needed_bytes // unit) * unit)} (about what the whole window takes)"


def _span(duration_ms: int) -> str:
    """In the two largest units that it has, rounded down: `6d 23h`, `1h 39m`, `28d`."""
    amounts = []
    for unit, length in _UNITS_MS.items():
        amount, duration_ms = divmod(duration_ms, length)
        amounts.append((amount, unit))
    largest = next((place for place, (amount, _) in enumerate(amounts) if amount), 0)
    return " ".join(f"{amount}{unit}" for amount, unit in amounts[largest : largest + 2] if amount) or "0s"


def newest_manifest(store: Store, stream: str, generation: int, settings: Dedup, unique: Table) -> Manifest | None:
    """The newest manifest of the key index of the unique table; None: there is none of use.

    Raises `StoreUnavailable`.
    """
    index = names.key_index_prefix(store.prefix, stream, generation, str(unique.metadata.table_uuid))
    return load(store, index, IndexOf.of_table(unique, settings.key, settings.buckets)).manifest


def check_window(config: Config, name: str) -> Window | None:
    """Look at how far back the sweeps of stream `name` see, and log it; None: there was no sweep yet.

    It only reads, so it can be asked again. Raises `WindowShrunk` with the alert when there is one, `ProgressLost`,
    `CatalogUnavailable`, `StoreUnavailable`.
    """
    stream = config.stream(name)
    settings = stream.dedup
    if settings is None:
        return None
    with Store.of(config.storage) as store, catalog_of(config) as catalog:
        tables = load_dedup_tables(catalog, stream)
        if tables is None:
            return None
        unique = tables.unique
        window = Window.of(read_sweep_state(unique.metadata, ".".join(unique.name())), settings)
        index = newest_manifest(store, name, stream.generation, settings, unique)
    logger.info("%s: dedup sees %s back; the key index has %s", name, window, _index_text(index))
    alert = alert_of(name, settings, window, index)
    if alert is not None:
        raise WindowShrunk(alert)
    return window
