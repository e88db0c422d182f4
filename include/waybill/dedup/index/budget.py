"""The size of a key index as a bound, and what it makes of the window.

An index that would pass its budget loses its oldest runs: they leave the manifest, and their files go with the next
maintenance. The horizon rises to what is still covered as a whole, in the state of the sweep that is committed: so all
who judge after it, with this index or with one that is built anew, judge alike.
"""

from __future__ import annotations

from collections.abc import Iterable

from waybill.dedup.index.runs import Run

__all__ = ["effective_window_ms", "horizon_within", "index_bytes"]


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
