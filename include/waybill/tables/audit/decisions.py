"""A person's decision about a held plan: an object beside the plan, created if absent, and never changed.

So if two people decide at the same time, one of them is refused, and a plan is either published or rejected.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, ClassVar, Self

from waybill.base.documents import As, Document, Stored
from waybill.base.errors import DecisionRefused
from waybill.config.names import decision_key
from waybill.services.store import Store


class DecisionKind(StrEnum):
    """The decisions about a held plan: the word that is stored and shown, and the verb in commands and forms."""

    verb: str

    def __new__(cls, stored: str, verb: str = "") -> Self:  # the default is for `DecisionKind(stored)` in mypy
        kind = str.__new__(cls, stored)
        kind._value_ = stored
        kind.verb = verb
        return kind

    RELEASED = "released", "release"
    """The rows of the plan are published unchanged."""
    REJECTED = "rejected", "reject"
    """The rows of the plan are dropped; the next run parses the same messages again."""

    @classmethod
    def of(cls, verb: str) -> Self:
        """Return the kind with that verb."""
        return next(kind for kind in cls if kind.verb == verb)


@dataclass(frozen=True, slots=True)
class HoldDecision(Stored):
    """One decision, with who made it, when and why."""

    DOCUMENT: ClassVar = Document(
        "decision {where} cannot be read ({error}): remove the object, and decide again",
        name="decision {where}",
        converts=True,
    )

    kind: Annotated[DecisionKind, As("decision")]
    by: str
    reason: str
    at: datetime


def find_decision(store: Store, plan_key: str) -> HoldDecision | None:
    """Return the decision about the plan with the key `plan_key`, or None if no person has decided.

    Raises `DocumentTooNew`, `DocumentDamaged` or `StoreUnavailable`.
    """
    key = decision_key(plan_key)
    found = store.read_if_exists(key)
    return None if found is None else HoldDecision.from_json(key, found)


def record_decision(store: Store, plan_key: str, decision: HoldDecision) -> HoldDecision:
    """Record a decision and return it; if the same decision was made before, return the earlier record.

    Raises `DecisionRefused` if the opposite decision was made before, and as `find_decision` does.
    """
    key = decision_key(plan_key)
    existing = store.create_or_read_existing(key, decision.to_json())
    if existing is None:
        return decision
    earlier = HoldDecision.from_json(key, existing)
    if earlier.kind is not decision.kind:
        raise DecisionRefused(
            f"the plan was {earlier.kind} by {earlier.by} at {earlier.at:%Y-%m-%d %H:%M:%S} UTC already "
            f"({earlier.reason}): a decision is not changed"
        )
    return earlier
