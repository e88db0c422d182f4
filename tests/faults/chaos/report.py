"""The report of a run of many seeds, as text and as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from chaos.scene import SceneResult

# Faults of messages come first, since they are the most important. All other kinds count as `other`.
_MESSAGE_KINDS = ("lost", "repeated", "out of order", "aborted", "foreign")


@dataclass
class Tally:
    """Sums over the seeds."""

    seeds: int = 0
    figures: Counter[str] = field(default_factory=Counter)
    injected: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    failed: list[SceneResult] = field(default_factory=list)
    longest_overtime_seconds: float = 0.0

    def add(self, result: SceneResult) -> None:
        ledger = result.ledger
        self.seeds += 1
        self.figures.update(
            {
                "messages written": ledger.written,
                "acknowledged and committed": len(ledger.acknowledged),
                "of aborted transactions": len(ledger.aborted),
                "of unknown outcome": len(ledger.unknown),
                "transactions committed": ledger.committed_transactions,
                "transactions aborted": ledger.aborted_transactions,
                "messages archived": result.archived,
                "objects": result.objects,
                "adopted objects": result.adopted,
                "lanes that reported": result.lanes,
            }
        )
        self.injected.update(result.injected)
        self.errors.update(result.errors)
        for fault in result.faults:
            self.kinds[fault.kind] += fault.count
        if result.faults:
            self.failed.append(result)
        self.longest_overtime_seconds = max(self.longest_overtime_seconds, result.longest_overtime_seconds)

    @property
    def is_sound(self) -> bool:
        return not self.failed

    def lines(self, seconds: float) -> list[str]:
        """The report."""
        text = [f"{self.seeds} seeds in {seconds:,.0f} s ({seconds / max(1, self.seeds):.1f} s each)", ""]
        text += [f"faults injected: {self.injected.total():,}"]
        text += [f"  {times:6,}  {what}" for what, times in sorted(self.injected.items())]
        text += ["", "what lanes failed with, to be tried again:"]
        text += [f"  {times:6,}  {name}" for name, times in sorted(self.errors.items())]
        text += ["", *(f"  {count:10,}  {name}" for name, count in self.figures.items())]
        text += [f"  {self.longest_overtime_seconds:10.1f}  seconds beyond its budget, at most, of a lane", ""]
        for kind in _MESSAGE_KINDS:
            text.append(f"  {self.kinds[kind]:10,}  {kind}")
        others = {kind: count for kind, count in self.kinds.items() if kind not in _MESSAGE_KINDS}
        text += [f"  {count:10,}  {kind}" for kind, count in sorted(others.items())]
        seeds = ", ".join(str(result.seed) for result in self.failed)
        text += ["", "sound: nothing lost, nothing repeated" if self.is_sound else f"NOT SOUND: seeds {seeds}"]
        return text

    def document(self, seconds: float) -> dict[str, Any]:
        return {
            "seeds": self.seeds,
            "seconds": round(seconds, 1),
            "injected": dict(sorted(self.injected.items())),
            "errors": dict(sorted(self.errors.items())),
            "figures": dict(self.figures),
            "longest_overtime_seconds": round(self.longest_overtime_seconds, 1),
            "faults": {kind: self.kinds[kind] for kind in (*_MESSAGE_KINDS, *sorted(self.kinds))},
            "failed_seeds": [result.seed for result in self.failed],
        }
