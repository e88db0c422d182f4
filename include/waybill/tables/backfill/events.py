"""The events of a backfill (promoted, undone, cancelled; by whom and why), and the claim that orders them.

Promotions and undos change two tables, and so do retries of the quarantine. If two of these overlapped, a message could
be lost or repeated. So they take turns: the tables count the retries that they have taken part in (`waybill.retries`),
and a promotion takes the next number, as a retry does. Its *claim* is the object of this number, created if absent:

- A retry that finds a claim raises `BackfillUnderWay`; it has not committed anything, since its own number is taken.
- A backfill that finds the claim of another backfill, or of a process that was killed, first executes that claim.
- Both tables record the number with the change. When both have it, the claim is done, and the next number is free.

So events have an order, and the earlier events decide whether an event is allowed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any, ClassVar

from waybill.base.documents import As, Document, Stored
from waybill.base.errors import BackfillRefused
from waybill.config.models import Stream
from waybill.config.names import backfill_built_key, backfill_event_key, backfill_prefix, retry_key
from waybill.services.store import Store
from waybill.tables.backfill.request import AnyRequest
from waybill.tables.backfill.states import POSSIBLE_IN, STATE_AFTER, BackfillAction, BackfillState
from waybill.tables.iceberg import StreamTables
from waybill.tables.quarantine.staged import CLAIM_FIELD, CLAIM_VERSION
from waybill.tables.quarantine.view import retries_of

ABANDONED_AFTER = timedelta(days=30)
"""A backfill that is neither promoted nor cancelled within this time expires: its files are removed."""


@dataclass(frozen=True, slots=True)
class BackfillEvent(Stored):
    """One event, which is a claim before it is recorded beside the request."""

    DOCUMENT: ClassVar = Document("{where} cannot be read ({error}): restore the object")

    backfill: Annotated[str, As(CLAIM_FIELD)]
    action: BackfillAction
    by: str
    reason: str
    at: datetime
    number: int
    """Events of all backfills of a stream, and retries of its quarantine, are numbered together."""
    is_effective: Annotated[bool, As("effective")] = True
    """False: an earlier event had made this one pointless, so it changed nothing."""

    def __str__(self) -> str:
        effect = "" if self.is_effective else " (without effect)"
        return f"{self.action} by {self.by} at {self.at:%Y-%m-%d %H:%M:%S} UTC: {self.reason}{effect}"

    def document(self) -> dict[str, Any]:
        """Return the event for a JSON document about its backfill."""
        return {name: value for name, value in self.to_fields().items() if name != CLAIM_FIELD}


# --- claims -----------------------------------------------------------------------------------------------------------

_CLAIM = replace(BackfillEvent.DOCUMENT, version=CLAIM_VERSION)


def find_claim(store: Store, name: str, stream: Stream, tables: StreamTables) -> BackfillEvent | None:
    """Return the claim that is not done yet, in the loaded tables; None if there is none."""
    key = _claim_key(store, name, stream, tables, min(retries_of(tables)))
    found = store.read_if_exists(key)
    if found is None or CLAIM_FIELD not in json.loads(found):
        return None
    return read_claim(key, found)


def read_claim(key: str, content: bytes) -> BackfillEvent:
    """Parse a claim. Raises `DocumentTooNew` or `DocumentDamaged`."""
    return _CLAIM.parse(key, content, partial(BackfillEvent.of_fields, key))


def make_claim(store: Store, name: str, stream: Stream, tables: StreamTables, claim: BackfillEvent) -> bool:
    """Take the number of `claim`. Return False if a retry or another claim has it."""
    key = _claim_key(store, name, stream, tables, claim.number)
    content = _CLAIM.write(claim.to_fields())
    existing = store.create_or_read_existing(key, content)
    return existing is None or bytes(existing) == content


def _claim_key(store: Store, name: str, stream: Stream, tables: StreamTables, number: int) -> str:
    return retry_key(store.prefix, name, stream.generation, str(tables.main.metadata.table_uuid), number)


# --- events -----------------------------------------------------------------------------------------------------------


def events_of(store: Store, request: AnyRequest) -> list[BackfillEvent]:
    """Return the recorded events of a backfill, in order."""
    prefix = backfill_prefix(store.prefix, request.stream, request.id) + "events/"
    return [BackfillEvent.from_json(key, store.read(key)) for key in store.keys(prefix)]


def state_of(store: Store, request: AnyRequest, before: int | None = None) -> BackfillState:
    """Return the state of a backfill, or the one that it had before the event with the number `before`."""
    events = [event for event in events_of(store, request) if before is None or event.number < before]
    return _state(events, store.exists(backfill_built_key(store.prefix, request.stream, request.id)))


def _state(events: Sequence[BackfillEvent], is_built: bool) -> BackfillState:
    done = [event for event in events if event.is_effective]
    if done:
        return STATE_AFTER[done[-1].action]
    return BackfillState.BUILT if is_built else BackfillState.PLANNED


def check_action(request: AnyRequest, state: BackfillState, action: BackfillAction) -> None:
    """Raise `BackfillRefused` if the action does not apply to a backfill in this state."""
    if state in POSSIBLE_IN[action]:
        return
    command = "waybill backfill"
    remedies = {
        BackfillState.PLANNED: f"its tasks are not done: `{command} run {request.stream} --id {request.id}` continues",
        BackfillState.BUILT: "it was not promoted",
        BackfillState.PROMOTED: f"it is promoted: `{command} undo {request.stream} {request.id}` undoes it",
        BackfillState.UNDONE: f"it is undone: `{command} promote {request.stream} {request.id}` promotes it again",
        BackfillState.CANCELLED: "it was cancelled, which is final",
    }
    raise BackfillRefused(
        f"backfill {request.id} of {request.stream} cannot be acted on by {action}: {remedies[state]}"
    )


def record_event(store: Store, request: AnyRequest, claim: BackfillEvent, *, is_blocked: bool) -> BackfillEvent:
    """Record the event of a claim, or find it recorded.

    The event is not effective if it does not apply to the backfill's state after the earlier events, or if it
    `is_blocked`.
    """
    applies = not is_blocked and state_of(store, request, before=claim.number) in POSSIBLE_IN[claim.action]
    event = replace(claim, is_effective=applies)
    key = backfill_event_key(store.prefix, request.stream, request.id, claim.number)
    existing = store.create_or_read_existing(key, event.to_json())
    return event if existing is None else BackfillEvent.from_json(key, existing)
