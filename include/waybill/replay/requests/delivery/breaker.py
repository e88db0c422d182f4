"""A circuit breaker: a target that keeps failing gets no requests for some time.

    closed ──`limit` failures in a row──▶ open ──its pause is over──▶ one trial ──success──▶ closed
                                           ▲                              │
                                           └──failure: the pause doubles──┘

The state is a small document, so that the next task, which may be another process, goes on with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

FIRST_PAUSE_MS = 30_000
LONGEST_PAUSE_MS = 15 * 60_000


@dataclass(frozen=True, slots=True)
class Breaker:
    """The recent answers of a target. Times are epoch ms."""

    limit: int
    """After how many failures in a row the breaker opens; at least 1."""
    failures: int = 0
    """The number of failures since the last success."""
    pause_ms: int = 0
    """The pause that began last; 0: the breaker is closed."""
    open_until_ms: int = 0

    def wait_ms(self, now_ms: int) -> int:
        """Return how long to wait before the next request to the target, in ms; 0: send it now."""
        # A clock that was set back must not keep the breaker open for longer than its pause.
        return min(max(self.open_until_ms - now_ms, 0), self.pause_ms)

    @property
    def is_on_trial(self) -> bool:
        """Whether the next failure opens the breaker again, at once."""
        return self.pause_ms > 0

    def succeeded(self) -> Breaker:
        """Return the state after a request that was answered."""
        return Breaker(self.limit)

    def failed(self, now_ms: int, retry_after_ms: int = 0) -> Breaker:
        """Return the state after a request that failed. `retry_after_ms`: the pause that the target asked for."""
        failures = self.failures + 1
        if failures < self.limit and not self.is_on_trial:
            return replace(self, failures=failures)
        doubled = min(2 * self.pause_ms or FIRST_PAUSE_MS, LONGEST_PAUSE_MS)
        pause_ms = max(doubled, min(retry_after_ms, LONGEST_PAUSE_MS))
        return replace(self, failures=failures, pause_ms=pause_ms, open_until_ms=now_ms + pause_ms)

    def document(self) -> dict[str, int]:
        """Return the state as JSON."""
        return {"v": 1, "failures": self.failures, "pause_ms": self.pause_ms, "open_until_ms": self.open_until_ms}

    @classmethod
    def of(cls, limit: int, document: Mapping[str, Any] | None) -> Breaker:
        """Return the state in a document; a closed breaker for None, or for a document of another version of Waybill.

        The state only protects the target from requests, so Waybill goes on without a state that it cannot read.
        """
        if document is None or document.get("v") != 1:
            return cls(limit)
        failures, pause_ms, open_until_ms = (document.get(name) for name in ("failures", "pause_ms", "open_until_ms"))
        if not (isinstance(failures, int) and isinstance(pause_ms, int) and isinstance(open_until_ms, int)):
            return cls(limit)
        return cls(limit, failures, pause_ms, open_until_ms)
