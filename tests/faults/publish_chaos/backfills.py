"""The acts of a history about backfills, and their effects on each message.

The range of a backfill is drawn, as is the config that it parses by. Requests may overlap, rivals may act at any step,
and each act may be killed or frozen there. Which config has made the rows of an offset is derived from the snapshots of
`main` alone: each names the plan, or the backfill and its action.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from partition_scenes import Scene

from waybill.base.errors import BackfillRefused
from waybill.config.models import Config
from waybill.config.names import TopicPartition, backfill_tag
from waybill.tables.backfill.choice import RangeChoice
from waybill.tables.backfill.events import events_of
from waybill.tables.backfill.kinds import change_backfill, request_backfill, run_backfill
from waybill.tables.backfill.planning import Trigger
from waybill.tables.backfill.request import BackfillRequest, find_request, list_requests
from waybill.tables.backfill.states import BackfillAction
from waybill.tables.iceberg.state import read_retries
from waybill.tables.staging.driver import OnStep

BUILD_STEPS = ("quarantine_branched", "branched", "built", "audited", "diffed")
CHANGE_STEPS = ("claimed", "decided", "quarantine_moved", "moved")


class Backfills:
    """The backfills of one history."""

    def __init__(self, scene: Scene, chance: random.Random, tp: TopicPartition) -> None:
        self._scene = scene
        self._random = chance
        self._tp = tp
        self._ids: list[str] = []

    def request(self, config: Config, progress: int) -> str | None:
        """Request a backfill of a random range below the progress; None if it is refused: another has some of it."""
        first, last = sorted((self._random.randrange(progress), self._random.randrange(progress)))
        choice = RangeChoice.parse(offsets=[f"{self._tp}@{first}-{last}"])
        try:
            made, _ = request_backfill(config, Trigger("flights", choice, "cleo", "chaos"))
        except BackfillRefused:
            return None
        self._ids.append(made.id)
        return made.id

    def pick(self) -> str | None:
        """Return a backfill in any state, often one of the newest; None without any."""
        return self._random.choice([*self._ids, *self._ids[-2:]]) if self._ids else None

    def build(self, config: Config, backfill: str, on_step: OnStep) -> object:
        return run_backfill(config, "flights", backfill, on_step=on_step)

    def change(self, config: Config, backfill: str, action: BackfillAction, on_step: OnStep = lambda _: None) -> object:
        return change_backfill(
            config, "flights", backfill, action, by="cleo", reason="chaos", accept_failed_checks=True, on_step=on_step
        )

    def end_all(self, config: Config) -> None:
        """End what was begun, and cancel what is still open."""
        for backfill in self._ids:
            with suppress(BackfillRefused):  # it is promoted, or cancelled
                self.change(config, backfill, BackfillAction.CANCEL)

    # --- for the check of what readers see ---

    def tags(self) -> set[str]:
        """Return the references that backfills may leave behind: those for an undo."""
        return {backfill_tag(backfill) for backfill in self._ids}

    def half_moved(self) -> set[int]:
        """Return the offsets that a change may have moved in one table only: between its two commits."""
        main, quarantine = self._scene.table.metadata, self._scene.quarantine.metadata
        if read_retries(main, "t") == read_retries(quarantine, "q"):
            return set()
        return {offset for request in list_requests(self._scene.store, "flights") for offset in self._range(request)}

    def decided(self) -> list[tuple[int, str, str]]:
        """Return number, backfill and action of each promotion and undo that took effect and that `main` must have."""
        taken_part = read_retries(self._scene.table.metadata, "t")
        found = [
            (event.number, request.id, str(event.action))
            for request in list_requests(self._scene.store, "flights")
            for event in events_of(self._scene.store, request)
            if event.is_effective and event.action is not BackfillAction.CANCEL and event.number < taken_part
        ]
        return sorted(found)

    def apply(self, properties: dict[str, Any], versions: dict[int, int], before: dict[str, dict[int, int]]) -> None:
        """Apply a backfill's snapshot of `main` to `versions`, the config that has made the rows of each offset.

        `before`: what promotions have replaced, by backfill.
        """
        request = find_request(self._scene.store, "flights", properties["waybill.backfill"])
        offsets = list(self._range(request))
        if properties["waybill.backfill.action"] == BackfillAction.PROMOTE:
            before[request.id] = {offset: versions[offset] for offset in offsets}
            versions.update(dict.fromkeys(offsets, version_of(request.plan.parse_settings)))
        else:
            versions.update(before[request.id])

    def _range(self, request: BackfillRequest) -> Iterator[int]:
        for tp, (first, end) in request.ranges:
            assert tp == self._tp
            yield from range(first, end)


def version_of(parse_settings: Any) -> int:
    """Return which of the two configs has these settings."""
    return 1 if parse_settings.parser.event_time.field == ("t1",) else 2
