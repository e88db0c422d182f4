"""What a person decided about a held plan: an object beside the plan, created if absent, and never changed.

So of two people who decide at the same time one is refused, and a plan is either published or given up.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Self

from waybill.base.documents import read_document
from waybill.base.errors import DecisionRefused, DocumentDamaged
from waybill.config.names import decision_key
from waybill.services.store import Store

_VERSION = 1


class DecisionKind(StrEnum):
    """What becomes of a held plan: the word that is stored and shown, and the verb that commands and forms take."""

    verb: str

    def __new__(cls, stored: str, verb: str = "") -> Self:  # the default is for `DecisionKind(stored)` in mypy
        kind = str.__new__(cls, stored)
        kind._value_ = stored
        kind.verb = verb
        return kind

    RELEASED = "released", "release"
    """Its rows are published as they are."""
    REJECTED = "rejected", "reject"
    """Its rows are dropped; the next run parses the same messages again."""

    @classmethod
    def of(cls, verb: str) -> Self:
        """Return the kind with that verb."""
        return next(kind for kind in cls if kind.verb == verb)


@dataclass(frozen=True, slots=True)
class HoldDecision:
    """One decision, with who made it, when and why."""

    kind: DecisionKind
    by: str
    reason: str
    at: datetime

    def to_json(self) -> bytes:
        """Return the content of the decision's object, with `"v": 1`."""
        fields = {"v": _VERSION, "decision": self.kind, "by": self.by, "reason": self.reason, "at": self.at.isoformat()}
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, key: str, data: bytes) -> Self:
        """Parse what `to_json` returned; `key` names the object in errors.

        Raises `DocumentTooNew` for a decision of a newer Waybill, `DocumentDamaged` for any other content.
        """
        try:
            fields = read_document(data, _VERSION, f"decision {key}")
            return cls(
                DecisionKind(fields["decision"]),
                str(fields["by"]),
                str(fields["reason"]),
                datetime.fromisoformat(fields["at"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DocumentDamaged(
                f"decision {key} cannot be read ({error}): remove the object, and decide again"
            ) from error


def find_decision(store: Store, plan_key: str) -> HoldDecision | None:
    """Return the decision about the plan with the key `plan_key`, or None if no person has decided.

    Raises `DocumentTooNew`, `DocumentDamaged` or `StoreUnavailable`.
    """
    key = decision_key(plan_key)
    found = store.read_if_exists(key)
    return None if found is None else HoldDecision.from_json(key, found)


def record_decision(store: Store, plan_key: str, decision: HoldDecision) -> HoldDecision:
    """Record a decision and return it; if the same was decided before, return the earlier one.

    Raises `DecisionRefused` if the opposite was decided before, and as `find_decision` does.
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
