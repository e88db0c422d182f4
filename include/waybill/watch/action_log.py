"""The log of actions that people take on the pages: who, when, what, why, and what came of it.

Each action has two objects that are created once: the record before anything is done, and the outcome. An action whose
record cannot be stored is not taken. One without an outcome was interrupted: the record of the decision itself (of a
gap, a pause, a hold, an incident) tells whether it was made.
"""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass, field
from datetime import timedelta

import orjson

from waybill.documents import read_document
from waybill.errors import DocumentDamaged
from waybill.names import action_key, action_outcome_key, actions_prefix, day_of
from waybill.store import Store

__all__ = ["ActionOutcome", "ActionRecord", "list_actions", "record_action", "record_outcome"]

_VERSION = 1
_SHOWN_DAYS = 7
_MOST_SHOWN = 50
_OUTCOME = ".outcome.json"


@dataclass(frozen=True, slots=True)
class ActionRecord:
    """An action that a person began."""

    id: str
    at_ms: int
    by: str
    action: str
    stream: str
    """'' for an action that belongs to no stream."""
    reason: str
    command: str
    """The command that does the same."""
    arguments: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, at_ms: int, by: str, action: str, arguments: dict[str, str], reason: str, command: str) -> ActionRecord:
        """Return the record of an action that begins now, with a new id."""
        return cls(secrets.token_hex(6), at_ms, by, action, arguments.get("stream", ""), reason, command, arguments)


@dataclass(frozen=True, slots=True)
class ActionOutcome:
    """What came of an action."""

    is_done: bool
    """False: it was refused, or failed."""
    text: str
    href: str = ""
    """The DAG run that does it; '' if it is done already."""


def record_action(store: Store, record: ActionRecord) -> str:
    """Store the record of an action, and return its key. Raises `StoreUnavailable`."""
    key = action_key(store.prefix, record.at_ms, record.id)
    store.create_if_absent(key, orjson.dumps({"v": _VERSION, **asdict(record)}))
    return key


def record_outcome(store: Store, record: ActionRecord, outcome: ActionOutcome) -> None:
    """Store what came of an action. Raises `StoreUnavailable`."""
    key = action_outcome_key(store.prefix, record.at_ms, record.id)
    store.create_if_absent(key, orjson.dumps({"v": _VERSION, **asdict(outcome)}))


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
                return found
            outcome = key.removesuffix(".json") + _OUTCOME
            found.append((_record(store, key), _outcome(store, outcome) if outcome in known else None))
    return found


def _record(store: Store, key: str) -> ActionRecord:
    try:
        fields = read_document(store.read(key), _VERSION, key)
        return ActionRecord(**{name: fields[name] for name in ActionRecord.__dataclass_fields__})
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(key, error) from None


def _outcome(store: Store, key: str) -> ActionOutcome:
    try:
        fields = read_document(store.read(key), _VERSION, key)
        return ActionOutcome(**{name: fields[name] for name in ActionOutcome.__dataclass_fields__})
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(key, error) from None


def _damaged(key: str, error: Exception) -> DocumentDamaged:
    return DocumentDamaged(
        f"{key} does not hold the record of an action ({type(error).__name__}: {error}). Restore it from a version of "
        f"the bucket, or move it away: the pages then do not list that action"
    )
