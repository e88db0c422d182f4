"""The log of people's actions on the pages, in a terminal and in Airflow: who, when, what, why, and the outcome.

Each action has two objects that are created once: the record before anything is done, and the outcome. An action
without an outcome was interrupted: the record of the decision itself (of a gap, a pause, a hold, an incident) shows
whether it was made.

The key of a record follows from its `ActionPlace`. On the pages, the place follows from the form. So if the same form
is sent twice, the second request finds the first record, and the action is not repeated.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any, Self

import orjson

from waybill.base.decision import Surface
from waybill.base.documents import Document
from waybill.config.names import action_key, action_outcome_key, actions_prefix, day_of
from waybill.services.store import Store

_DOCUMENT = Document(
    "{where} does not hold the record of an action ({kind}: {error}). Restore it from a version of the bucket, or move "
    "it away: the pages then do not list that action",
    dump=orjson.dumps,
)
_SHOWN_DAYS = 7
_MOST_SHOWN = 50
_OUTCOME = ".outcome.json"
_ID_CHARACTERS = 24
_MS_DIGITS = 13


@dataclass(frozen=True, slots=True)
class ActionPlace:
    """Where an action is recorded: derived from the form, so that a form that is sent twice is one action."""

    form_ms: int
    """When the page with the form was made."""
    id: str

    @classmethod
    def of(cls, form_ms: int, page_key: str, by: str, action: str, fields: Mapping[str, str], reason: str) -> Self:
        """Return the place of an action that was sent from the page with that key."""
        sent = orjson.dumps([page_key, by, action, sorted(fields.items()), reason])
        return cls(form_ms, hashlib.sha256(sent).hexdigest()[:_ID_CHARACTERS])

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the place of `str(place)`; None for another text."""
        form_ms, dash, identifier = text.partition("-")
        is_id = len(identifier) == _ID_CHARACTERS and set(identifier) <= set("0123456789abcdef")
        if not (dash and is_id and form_ms.isascii() and form_ms.isdecimal() and len(form_ms) == _MS_DIGITS):
            return None
        return cls(int(form_ms), identifier)

    def __str__(self) -> str:
        return f"{self.form_ms:0{_MS_DIGITS}d}-{self.id}"


@dataclass(frozen=True, slots=True)
class ActionRecord:
    """An action that a person began."""

    id: str
    form_ms: int
    """When the page with the form was made. With `id`, it is the key of the record."""
    at_ms: int
    """When the action was taken."""
    by: str
    action: str
    stream: str
    """'' for an action that belongs to no stream."""
    reason: str
    command: str
    """The command that does the same."""
    arguments: dict[str, str] = field(default_factory=dict)
    surface: str = Surface.PAGE
    """The `Surface` of the action. Records without this field are older, and all come from pages."""

    @classmethod
    def of(
        cls,
        place: ActionPlace,
        at_ms: int,
        by: str,
        action: str,
        arguments: dict[str, str],
        reason: str,
        command: str,
        surface: Surface = Surface.PAGE,
    ) -> ActionRecord:
        """Return the record of an action that begins now."""
        stream = arguments.get("stream", "")
        return cls(place.id, place.form_ms, at_ms, by, action, stream, reason, command, arguments, surface)

    @property
    def place(self) -> ActionPlace:
        return ActionPlace(self.form_ms, self.id)


@dataclass(frozen=True, slots=True)
class ActionOutcome:
    """The outcome of an action."""

    is_done: bool
    """False: the action was refused, or failed. True also for a triggered DAG run, which may fail later."""
    text: str
    href: str = ""
    """The address of the DAG run that was triggered; '' if there is none."""
    dag: str = ""
    run: str = ""
    """The DAG and the id of the run."""


def record_action(store: Store, record: ActionRecord) -> bool:
    """Store the record of an action.

    Return False if the same form was sent before: then the action must not be repeated.

    Raises `StoreUnavailable`.
    """
    key = action_key(store.prefix, record.form_ms, record.id)
    # The random field tells this request from another one of the same millisecond.
    content = _DOCUMENT.write({**asdict(record), "request": secrets.token_hex(8)})
    existing = store.create_or_read_existing(key, content)
    return existing is None or existing == content


def record_outcome(store: Store, record: ActionRecord, outcome: ActionOutcome) -> None:
    """Store the outcome of an action, unless one is stored already. Raises `StoreUnavailable`."""
    key = action_outcome_key(store.prefix, record.form_ms, record.id)
    store.create_or_read_existing(key, _DOCUMENT.write(asdict(outcome)))


def find_action(store: Store, place: ActionPlace) -> tuple[ActionRecord, ActionOutcome | None] | None:
    """Return an action and its outcome (None if it is unknown); None if there is no such action.

    Raises `StoreUnavailable`, `DocumentTooNew` or `DocumentDamaged`.
    """
    key = action_key(store.prefix, place.form_ms, place.id)
    content = store.read_if_exists(key)
    if content is None:
        return None
    record = _record(key, content)
    outcome_key = action_outcome_key(store.prefix, place.form_ms, place.id)
    outcome = store.read_if_exists(outcome_key)
    return record, None if outcome is None else _outcome(outcome_key, outcome)


def list_actions(store: Store, now_ms: int) -> list[tuple[ActionRecord, ActionOutcome | None]]:
    """Return the newest actions of the last days, the newest first.

    Raises `StoreUnavailable`, `DocumentTooNew` or `DocumentDamaged`.
    """
    found: list[tuple[ActionRecord, ActionOutcome | None]] = []
    today = day_of(now_ms)
    for days in range(_SHOWN_DAYS):
        keys = sorted(store.keys(actions_prefix(store.prefix, today - timedelta(days=days))), reverse=True)
        known = set(keys)
        for key in (each for each in keys if not each.endswith(_OUTCOME)):
            if len(found) == _MOST_SHOWN:
                return sorted(found, key=lambda each: -each[0].at_ms)
            outcome = key.removesuffix(".json") + _OUTCOME
            found.append(
                (_record(key, store.read(key)), _outcome(outcome, store.read(outcome)) if outcome in known else None)
            )
    return sorted(found, key=lambda each: -each[0].at_ms)


def _record(key: str, content: bytes) -> ActionRecord:
    def made(fields: dict[str, Any]) -> ActionRecord:
        fields.setdefault("form_ms", fields["at_ms"])  # records of the first pages have none
        fields.setdefault("surface", Surface.PAGE)
        return ActionRecord(**{name: fields[name] for name in ActionRecord.__dataclass_fields__})

    return _DOCUMENT.parse(key, content, made)


def _outcome(key: str, content: bytes) -> ActionOutcome:
    names = ActionOutcome.__dataclass_fields__
    return _DOCUMENT.parse(
        key, content, lambda fields: ActionOutcome(**{name: fields[name] for name in names if name in fields})
    )
