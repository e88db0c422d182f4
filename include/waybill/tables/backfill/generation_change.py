"""Promote a generation that was built, undo the promotion, or cancel the build.

Each action is an event of the backfill.

The table decides which generation consumers see (`waybill.tables.partition.generations`), and the event is recorded
afterwards. If a process is killed between the two, the same command finishes the work.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

from waybill.base.errors import BackfillRefused
from waybill.config.models import Config
from waybill.config.names import generation_changes_prefix
from waybill.services.store import Store
from waybill.tables.backfill.events import BackfillEvent, check_action, events_of, record_event, state_of
from waybill.tables.backfill.generation_build import load_generation
from waybill.tables.backfill.generation_request import GenerationRequest
from waybill.tables.backfill.promotion import Changed
from waybill.tables.backfill.states import BackfillAction
from waybill.tables.backfill.work import reach_step
from waybill.tables.iceberg.generations import live_generation
from waybill.tables.partition.generations import promote_generation
from waybill.tables.staging.driver import OnStep
from waybill.tables.staging.services import StagingServices, services_of

_STEPS = {"decided": "decided", "quarantine_promoted": "quarantine_moved", "promoted": "moved"}


def change_generation(
    config: Config,
    request: GenerationRequest,
    action: BackfillAction,
    *,
    by: str,
    reason: str,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    on_step: OnStep = reach_step,
    services: StagingServices | None = None,
) -> Changed:
    """Promote, undo or cancel the build of a generation, and return the event.

    An undo lets consumers read the generation again that was live before the promotion.

    Calls `on_step` with `decided`, `quarantine_moved` and `moved`. Raises `BackfillRefused` if the action does not
    apply, `CommitConflict`, or one of the retriable `StoreUnavailable` and `CatalogUnavailable`; the same call then
    continues.
    """
    with services_of(config, services) as opened:
        tables = load_generation(opened, config, request)
        live = live_generation(tables.main)
        state = state_of(opened.store, request)
        last = next((event for event in reversed(events_of(opened.store, request)) if event.is_effective), None)
        wanted = _wanted(opened.store, request, action)
        is_recorded = last is not None and last.action is action
        if last is not None and is_recorded and wanted in (None, live):
            return Changed(last, is_new=False)
        if not is_recorded:
            check_action(request, state, action)
        if wanted is not None:
            if action is BackfillAction.UNDO and live not in (request.generation, wanted):
                raise BackfillRefused(
                    f"generation {request.generation} is no longer live, so its promotion cannot be undone: consumers "
                    f"read generation {live}. `waybill generation promote {request.stream} --to …` chooses another"
                )
            steps = partial(_reach_renamed, on_step)
            promote_generation(
                config, request.stream, wanted, by=by, reason=reason, now=now, on_step=steps, services=opened
            )
        if last is not None and is_recorded:
            return Changed(last, is_new=True)  # another generation had been made live in between
        event = BackfillEvent(request.id, action, by, reason, now(), len(events_of(opened.store, request)))
        return Changed(record_event(opened.store, request, event, is_blocked=False), is_new=True)


def _reach_renamed(on_step: OnStep, step: str) -> None:
    on_step(_STEPS[step])


def _wanted(store: Store, request: GenerationRequest, action: BackfillAction) -> int | None:
    """Return the generation that is live after the action; None: the action does not change the live generation."""
    if action is BackfillAction.CANCEL:
        return None
    if action is BackfillAction.PROMOTE:
        return request.generation
    decisions = (
        json.loads(store.read(key)) for key in store.keys(generation_changes_prefix(store.prefix, request.stream))
    )
    before = [decision["from"] for decision in decisions if decision["to"] == request.generation]
    return int(before[-1]) if before else request.live
