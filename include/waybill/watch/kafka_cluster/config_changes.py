"""Changes of a topic's configs: which values differ, and which changes can cost messages.

A change is risky if it makes Kafka delete messages, archived or not, or if acknowledged messages can be lost with a
broker afterwards. A change that makes Kafka keep more messages, or keep them more safely, is not risky.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

_POLICY = "cleanup.policy"
_DELETE, _COMPACT = "delete", "compact"


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """A config with its current value (None: unknown) and the declared value."""

    before: str | None
    after: str
    risk: str = ""
    """The possible loss, in words. '' if the change can lose no message."""


_LOWERED = {
    "retention.ms": (_DELETE, "Kafka deletes messages that are older"),
    "retention.bytes": (_DELETE, "Kafka deletes the oldest messages above this size"),
    "delete.retention.ms": (_COMPACT, "Kafka deletes tombstones earlier"),
    "min.compaction.lag.ms": (_COMPACT, "Kafka deletes older messages of a key earlier"),
    "max.compaction.lag.ms": (_COMPACT, "Kafka deletes older messages of a key earlier"),
    "min.cleanable.dirty.ratio": (_COMPACT, "Kafka deletes older messages of a key earlier"),
}
"""Configs that can lose messages when they are lowered: the cleanup policy under which they do, and the effect.

`segment.ms` and `segment.bytes` are missing: a shorter segment only lets Kafka keep to the retention more exactly.
"""

_SET_TO = {
    ("unclean.leader.election.enable", "true"): "a replica that lacks messages may become leader, and they are lost",
    ("remote.storage.enable", "false"): "Kafka can delete the messages in remote storage",
    ("remote.log.delete.on.disable", "true"): "Kafka deletes the messages in remote storage when it is switched off",
}
_MIN_ISR_RISK = "Kafka acknowledges messages that fewer brokers have, and they are lost with these brokers"
_POLICY_RISKS = {
    _DELETE: "Kafka deletes messages by age and size",
    _COMPACT: "Kafka deletes all messages of a key but the newest, and refuses messages without a key",
}


def differs(before: str | None, after: str) -> bool:
    """Return whether two texts stand for different values. Kafka prints `0.5` for `0.50`, and lists in any order."""
    return before is None or _normal(before) != _normal(after)


def split_by_risk(
    actual: Mapping[str, str], declared: Mapping[str, str]
) -> tuple[dict[str, ConfigChange], dict[str, ConfigChange]]:
    """Return the changes that lead to the declared configs: those without a risk, and those with one."""
    before = _policies(actual.get(_POLICY, f"{_COMPACT},{_DELETE}"))
    after = _policies(declared.get(_POLICY))
    changes = {
        name: ConfigChange(actual.get(name), value, _risk(name, actual.get(name), value, before | after))
        for name, value in sorted(declared.items())
        if differs(actual.get(name), value)
    }
    safe = {name: change for name, change in changes.items() if not change.risk}
    return safe, {name: change for name, change in changes.items() if change.risk}


def _risk(name: str, before: str | None, after: str, policies: frozenset[str]) -> str:
    """Return the possible loss of a change.

    `policies`: before and after the change, since configs may be changed one by one.
    """
    if name == _POLICY:
        added = sorted(_policies(after) - _policies(before))
        return "; ".join(_POLICY_RISKS[policy] for policy in added if policy in _POLICY_RISKS)
    if name == "min.insync.replicas":
        return _MIN_ISR_RISK if _is_lower(before, after) else ""
    if name in _LOWERED:
        policy, risk = _LOWERED[name]
        return risk if policy in policies and _is_lower(before, after) else ""
    return _SET_TO.get((name, after.strip().lower()), "")


def _policies(text: str | None) -> frozenset[str]:
    return frozenset() if text is None else frozenset(part.strip() for part in text.split(","))


def _is_lower(before: str | None, after: str) -> bool:
    """Return whether a limit may be lowered. A value that is unknown, or that is not a number, counts as lowered."""
    old, new = _number(before), _number(after)
    if old is None or new is None:
        return True
    unlimited = Decimal("Infinity")
    return (unlimited if new < 0 else new) < (unlimited if old < 0 else old)  # -1 stands for no limit


def _number(text: str | None) -> Decimal | None:
    try:
        number = Decimal("" if text is None else text.strip())
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _normal(text: str) -> str | Decimal:
    number = _number(text)
    if number is not None:
        return number
    found = ",".join(sorted(part.strip() for part in text.split(",")))
    return found.lower() if found.lower() in {"true", "false"} else found
