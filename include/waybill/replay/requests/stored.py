"""A replay request with its state and progress, as the database stores it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, RowMapping, and_

from waybill.base.documents import Document
from waybill.base.errors import WaybillError, expected
from waybill.replay.requests.database import requests
from waybill.replay.requests.request import ReplayRequest, Requested, time_text_of
from waybill.replay.requests.states import RequestState

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RejectedMessage:
    """A message that the target refused permanently."""

    topic: str
    partition: int
    offset: int
    reason: str
    """The answer of the target."""

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"topic": self.topic, "partition": self.partition, "offset": self.offset, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a request, as totals since its creation."""

    cursor: Mapping[str, Any] | None = field(default=None, hash=False)
    """Where the next claim continues (`replay.cursor`); None: at the beginning."""
    found: int = 0
    """The number of wanted messages in the part of the range that has been read."""
    delivered: int = 0
    """The number of these messages that the target has."""
    share: float = 0.0
    """How much of the range is read, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """A request with its state, its claim and its progress."""

    request: ReplayRequest
    state: RequestState
    reason: str
    """Why it failed, or who cancelled it and why; else empty."""
    claim: int
    """The number of its last claim; 0: it was never claimed."""
    worker: str | None
    """The worker of its last claim."""
    heartbeat_ms: int | None
    """When that worker last sent a heartbeat; None if the request has ended, or the claim was given back."""
    not_before_ms: int
    """No worker may claim it before."""
    progress: Progress
    rejected: int
    """How many messages the target rejected."""
    started_at_ms: int | None
    finished_at_ms: int | None

    @property
    def duplicates(self) -> int:
        """The number of found messages that were dropped as duplicates."""
        return int((self.progress.cursor or {}).get("duplicates", 0))

    @property
    def problem(self) -> str:
        """Why the last attempt failed, for a request that has not ended; empty if it succeeded."""
        return "" if self.state.is_final else str((self.progress.cursor or {}).get("problem", ""))

    def remaining_seconds(self, now_ms: int) -> float | None:
        """Return the remaining time at the speed since the start of the request; None if it is unknown."""
        share = self.progress.share
        if self.state.is_final or self.started_at_ms is None or share <= 0:
            return None
        return max(now_ms - self.started_at_ms, 0) / 1000 * (1 - share) / share

    def document(self, now_ms: int) -> dict[str, Any]:
        """Return the document for the HTTP API and `--json`."""
        remaining = self.remaining_seconds(now_ms)
        return {
            "id": self.request.id,
            "state": str(self.state),
            "reason": self.reason,
            "problem": self.problem,
            "requester": self.request.requester,
            "created_at": time_text_of(self.request.created_at_ms),
            "started_at": _time_or_none(self.started_at_ms),
            "finished_at": _time_or_none(self.finished_at_ms),
            "request": self.request.requested.to_fields(),
            "progress": {
                "found": self.progress.found,
                "delivered": self.progress.delivered,
                "rejected": self.rejected,
                "duplicates": self.duplicates,
                "percent": round(self.progress.share * 100, 1),
                "remaining_seconds": None if remaining is None else round(remaining),
            },
            "claims": self.claim,
            "worker": self.worker if self.heartbeat_ms is not None else None,
            "heartbeat_at": _time_or_none(self.heartbeat_ms),
        }

    @classmethod
    def of(cls, row: RowMapping) -> StoredRequest:
        """Return the request of a row. Raises `DocumentTooNew` or `DocumentDamaged`."""
        where = f"replay request {row['id']}"
        return cls(
            request=ReplayRequest(
                id=row["id"],
                requested=Requested.from_json(where, row["document"]),
                requester=row["requester"],
                created_at_ms=row["created_at_ms"],
            ),
            state=RequestState(row["state"]),
            reason=row["reason"],
            claim=row["claim"],
            worker=row["worker"],
            heartbeat_ms=row["heartbeat_ms"],
            not_before_ms=row["not_before_ms"],
            progress=Progress(
                cursor=_read_cursor(row["cursor"], where),
                found=row["found"],
                delivered=row["delivered"],
                share=row["share"],
            ),
            rejected=row["rejected"],
            started_at_ms=row["started_at_ms"],
            finished_at_ms=row["finished_at_ms"],
        )


@dataclass(frozen=True, slots=True)
class UnreadableRequest:
    """A stored request whose documents cannot be parsed, with the columns that need no parsing."""

    id: str
    stream: str
    requester: str
    state: str
    created_at_ms: int
    error: WaybillError
    """Why the request cannot be read, and the remedy."""


def read_request(row: RowMapping) -> StoredRequest | UnreadableRequest:
    """Return the request of a row. A request that cannot be read for any reason does not hinder the reading of others.

    The reason is logged. A caller that goes on with the others must report this one.
    """
    try:
        return StoredRequest.of(row)
    except Exception as error:
        failure = expected(f"replay request {row['id']}", error)
        if failure is error:
            logger.error("a replay request is left out: %s", failure)
        else:
            logger.exception("a replay request is left out: %s", failure)
        return UnreadableRequest(
            row["id"], row["stream"], row["requester"], row["state"], row["created_at_ms"], failure
        )


_CURSOR = Document(
    "the cursor of {where} is damaged ({error!r}): restore its row from a backup of the database, or delete the row "
    "and create the request again",
    name="the cursor of {where}",
)


def cursor_json(cursor: Mapping[str, Any] | None) -> str | None:
    """Return a cursor as the database stores it."""
    return None if cursor is None else _CURSOR.write({"cursor": dict(cursor)}).decode()


def _read_cursor(text: str | None, where: str) -> dict[str, Any] | None:
    return None if text is None else _CURSOR.parse(where, text, lambda fields: dict(fields["cursor"]))


def is_claimed_at(now_ms: int, claim_timeout_ms: int) -> ColumnElement[bool]:
    """Return the SQL condition that a worker holds the claim of a request, and its heartbeat is not too old."""
    return and_(requests.c.heartbeat_ms.is_not(None), requests.c.heartbeat_ms > now_ms - claim_timeout_ms)


def plain_text(text: str, max_characters: int) -> str:
    """Return an external text that can be stored and printed: of limited length, without control characters."""
    return "".join(each if each.isprintable() else "\ufffd" for each in text[:max_characters])


def _time_or_none(at_ms: int | None) -> str | None:
    return None if at_ms is None else time_text_of(at_ms)
