"""The figures of a meter: S3 requests by operation, bytes in each direction, CPU seconds by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

_DECIMALS = 4


@dataclass(slots=True)
class Tally:
    """Usage figures. Tallies of different processes, streams or days can be added up."""

    requests: Counter[str] = field(default_factory=Counter)
    """S3 requests by operation, with S3's names: `PutObject`, `ListObjectsV2`."""
    sent_bytes: int = 0
    """Bodies of requests."""
    received_bytes: int = 0
    """Bodies of answers."""
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    """By step, such as `ingest_lane`."""
    messages: int = 0
    """Messages that were archived."""

    def __bool__(self) -> bool:
        return bool(self.requests or self.sent_bytes or self.received_bytes or self.cpu_seconds or self.messages)

    def add(self, other: Tally) -> None:
        """Add another tally to this one."""
        self.requests.update(other.requests)
        self.sent_bytes += other.sent_bytes
        self.received_bytes += other.received_bytes
        for step, seconds in other.cpu_seconds.items():
            self.add_cpu(step, seconds)
        self.messages += other.messages

    def add_cpu(self, step: str, seconds: float) -> None:
        """Add CPU seconds to a step."""
        self.cpu_seconds[step] = self.cpu_seconds.get(step, 0.0) + seconds

    @classmethod
    def sum(cls, tallies: Iterable[Tally]) -> Self:
        """Return the sum of tallies."""
        total = cls()
        for tally in tallies:
            total.add(tally)
        return total

    def to_fields(self) -> dict[str, Any]:
        """Return the tally as a JSON object; figures of 0 are left out."""
        fields: dict[str, Any] = {
            "requests": {name: count for name, count in sorted(self.requests.items()) if count},
            "sent": self.sent_bytes,
            "received": self.received_bytes,
            "cpu": {step: round(seconds, _DECIMALS) for step, seconds in sorted(self.cpu_seconds.items()) if seconds},
            "messages": self.messages,
        }
        return {name: value for name, value in fields.items() if value}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Return the tally of a JSON object. Raises `TypeError` or `ValueError` if it is none."""
        return cls(
            requests=Counter({str(name): int(count) for name, count in dict(fields.get("requests", {})).items()}),
            sent_bytes=int(fields.get("sent", 0)),
            received_bytes=int(fields.get("received", 0)),
            cpu_seconds={str(step): float(each) for step, each in dict(fields.get("cpu", {})).items()},
            messages=int(fields.get("messages", 0)),
        )


def divided(tally: Tally, weights: Mapping[str, float]) -> dict[str, Tally]:
    """Return the parts of a tally in the proportion of the weights; equal parts if all weights are 0.

    The parts of each figure add up to the figure: whole numbers are divided so that rounding loses nothing.
    """
    names = list(weights)
    total = sum(weights.values())
    shares = [weights[name] / total if total > 0 else 1 / len(names) for name in names]
    parts = {name: Tally() for name in names}
    for operation, count in tally.requests.items():
        for name, part in zip(names, _cut(count, shares), strict=True):
            if part:
                parts[name].requests[operation] = part
    sent, received, messages = (
        _cut(figure, shares) for figure in (tally.sent_bytes, tally.received_bytes, tally.messages)
    )
    for number, name in enumerate(names):
        own = parts[name]
        own.sent_bytes, own.received_bytes, own.messages = sent[number], received[number], messages[number]
        own.cpu_seconds = {step: seconds * shares[number] for step, seconds in tally.cpu_seconds.items()}
    return parts


def _cut(figure: int, shares: Sequence[float]) -> list[int]:
    """Return whole parts that add up to the figure: each ends where the sum of the shares so far, rounded, is."""
    parts, before, passed = [], 0, 0.0
    for number, share in enumerate(shares, 1):
        passed += share
        end = figure if number == len(shares) else round(figure * passed)
        parts.append(end - before)
        before = end
    return parts
