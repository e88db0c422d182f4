"""The states of a replay request, and the events that change the state.

    OPEN ──claim──▶ STARTED ──progress──▶ ONGOING ──complete──▶ COMPLETED
                                             ├──────fail──────▶ FAILED
      every state that is not final ──────cancel──────────────▶ CANCELLED

A worker that gives its claim back, or loses it, changes no state: the request stays STARTED or ONGOING with its cursor,
and the next claim continues there. So "claimed" is not a state of a request: it follows from the request's claim.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class RequestState(StrEnum):
    """The state of a replay request."""

    OPEN = "open"
    """No worker has claimed it yet."""
    STARTED = "started"
    """A worker has claimed it, and no progress is recorded."""
    ONGOING = "ongoing"
    """Progress is recorded."""
    COMPLETED = "completed"
    """Every message of the range is delivered, or rejected by the target and listed."""
    FAILED = "failed"
    """A worker gave it up; the reason is stored."""
    CANCELLED = "cancelled"
    """A person cancelled it."""

    @property
    def is_final(self) -> bool:
        """Whether no event changes the request any more."""
        return self in FINAL_STATES


class RequestEvent(StrEnum):
    """What happens to a replay request."""

    CLAIM = "claim"
    PROGRESS = "progress"
    RELEASE = "release"
    COMPLETE = "complete"
    FAIL = "fail"
    CANCEL = "cancel"


FINAL_STATES = frozenset({RequestState.COMPLETED, RequestState.FAILED, RequestState.CANCELLED})
OPEN_STATES = frozenset(RequestState) - FINAL_STATES
"""The states that count for the quotas of open requests."""

TRANSITIONS: Mapping[tuple[RequestState, RequestEvent], RequestState] = MappingProxyType(
    {
        (RequestState.OPEN, RequestEvent.CLAIM): RequestState.STARTED,
        (RequestState.OPEN, RequestEvent.CANCEL): RequestState.CANCELLED,
        (RequestState.STARTED, RequestEvent.CLAIM): RequestState.STARTED,
        (RequestState.STARTED, RequestEvent.PROGRESS): RequestState.ONGOING,
        (RequestState.STARTED, RequestEvent.RELEASE): RequestState.STARTED,
        (RequestState.STARTED, RequestEvent.COMPLETE): RequestState.COMPLETED,
        (RequestState.STARTED, RequestEvent.FAIL): RequestState.FAILED,
        (RequestState.STARTED, RequestEvent.CANCEL): RequestState.CANCELLED,
        (RequestState.ONGOING, RequestEvent.CLAIM): RequestState.ONGOING,
        (RequestState.ONGOING, RequestEvent.PROGRESS): RequestState.ONGOING,
        (RequestState.ONGOING, RequestEvent.RELEASE): RequestState.ONGOING,
        (RequestState.ONGOING, RequestEvent.COMPLETE): RequestState.COMPLETED,
        (RequestState.ONGOING, RequestEvent.FAIL): RequestState.FAILED,
        (RequestState.ONGOING, RequestEvent.CANCEL): RequestState.CANCELLED,
    }
)
"""The state after an event. An event that is not listed for a state is refused."""


def states_before(event: RequestEvent) -> tuple[RequestState, ...]:
    """Return the states in which `event` is allowed."""
    return tuple(state for state, allowed in TRANSITIONS if allowed is event)
