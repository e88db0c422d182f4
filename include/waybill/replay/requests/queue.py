"""The queue of replay requests, as requesters use it: create, list, show and cancel.

Creations wait for each other: each updates the row `create` of the table of locks before it counts, so no quota is
exceeded, however many arrive together. Every count ends at its quota and reads an index, so a full queue answers as
fast as an empty one. Times are arguments (epoch ms): the caller's clock decides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from sqlalchemy import ColumnElement, Connection, delete, func, insert, select, update

from waybill.base.errors import ConfigError, ReplayQuotaReached, ReplayRefused
from waybill.config.models.quantities import rough_duration
from waybill.config.models.replay import ReplayQuotas
from waybill.replay.requests.database import Database, locks, rejected, requesters, requests
from waybill.replay.requests.request import (
    ReplayRequest,
    Requested,
    check_request_id,
    check_requester,
    first_id_of,
    new_request_id,
)
from waybill.replay.requests.states import (
    FINAL_STATES,
    OPEN_STATES,
    TRANSITIONS,
    RequestEvent,
    RequestState,
    states_before,
)
from waybill.replay.requests.stored import RejectedMessage, StoredRequest, UnreadableRequest, plain_text, read_request

MAX_PAGE = 1_000
_DAY_MS = 86_400_000
_MAX_IDEMPOTENCY_KEY_CHARACTERS = 200
_MAX_REASON_CHARACTERS = 1_000
_WAIT_FOR_OPEN_SECONDS = 60
_REMOVED_AT_ONCE = 500


class Page(list[StoredRequest]):
    """Some requests, the newest first: those that can be read, and those that cannot."""

    def __init__(self, rows: Iterable[StoredRequest | UnreadableRequest] = (), next_before: str | None = None) -> None:
        found = list(rows)
        super().__init__(each for each in found if isinstance(each, StoredRequest))
        self.unreadable = [each for each in found if isinstance(each, UnreadableRequest)]
        self.next_before = next_before
        """The next page begins before this id; None: there is none."""


class Queue:
    """The requests of a database. Every method raises `ReplayUnavailable` when the database does not answer."""

    def __init__(self, database: Database, quotas: ReplayQuotas) -> None:
        self._database, self._quotas = database, quotas

    def create(
        self, requested: Requested, requester: str, now_ms: int, *, idempotency_key: str | None = None
    ) -> tuple[StoredRequest, bool]:
        """Store a request. Return it, and whether it is new.

        A second call of a requester with the same `idempotency_key` returns the request of the first call, in its
        present state. Raises `ReplayRefused` if the first call was for another request, and `ReplayQuotaReached`.
        """
        check_requester(requester)
        if idempotency_key is not None:
            _check_idempotency_key(idempotency_key)
        request = ReplayRequest(new_request_id(now_ms), requested, requester, now_ms)

        def work(connection: Connection) -> tuple[StoredRequest, bool]:
            # The id was made earlier: after a lost connection, this query finds the row that the first transaction
            # committed.
            if stored := _find(connection, requests.c.id == request.id):
                return stored, True
            _wait_for_other_creations(connection)
            if idempotency_key is not None and (earlier := _same_key(connection, request, idempotency_key)):
                return earlier, False
            self._check_quotas(connection, requester, now_ms)
            _insert(connection, request, idempotency_key)
            stored = _find(connection, requests.c.id == request.id)
            assert stored is not None
            return stored, True

        return self._database.write(work)

    def show(self, request_id: str) -> StoredRequest:
        """Return a request. Raises `ReplayRefused` if there is none with the id."""
        checked = check_request_id(request_id)
        return self._database.read(lambda connection: _existing(connection, checked))

    def page(
        self,
        *,
        state: RequestState | None = None,
        requester: str | None = None,
        before_id: str | None = None,
        limit: int = 100,
    ) -> Page:
        """Return up to `limit` requests, the newest first, with a separate list of requests that cannot be read.

        Raises `ReplayRefused` if `before_id` is no id, `requester` no name, or `limit` not from 1 to `MAX_PAGE`.
        """
        if not 1 <= limit <= MAX_PAGE:
            raise ReplayRefused(f"{limit} must be from 1 to {MAX_PAGE:,}", "limit")
        wanted = [requests.c.id < check_request_id(before_id)] if before_id is not None else []
        if state is not None:
            wanted.append(requests.c.state == state)
        if requester is not None:
            wanted.append(requests.c.requester == check_requester(requester))
        query = select(requests).where(*wanted).order_by(requests.c.id.desc()).limit(limit)
        rows = self._database.read(lambda connection: connection.execute(query).mappings().all())
        return Page(map(read_request, rows), rows[-1]["id"] if len(rows) == limit else None)

    def rejected_of(
        self, request_id: str, *, after: RejectedMessage | None = None, limit: int = 100
    ) -> list[RejectedMessage]:
        """Return up to `limit` messages that the target of a request rejected, by topic, partition and offset.

        The next page begins after the last message. Raises `ReplayRefused` as `show` and `page` do.
        """
        if not 1 <= limit <= MAX_PAGE:
            raise ReplayRefused(f"{limit} must be from 1 to {MAX_PAGE:,}", "limit")
        checked = check_request_id(request_id)
        place = (rejected.c.topic, rejected.c.partition_number, rejected.c.message_offset)
        query = select(rejected).where(rejected.c.request_id == checked).order_by(*place).limit(limit)
        if after is not None:
            query = query.where(_follows(place, (after.topic, after.partition, after.offset)))

        def work(connection: Connection) -> list[RejectedMessage]:
            _existing(connection, checked)
            return [
                RejectedMessage(row["topic"], row["partition_number"], row["message_offset"], row["reason"])
                for row in connection.execute(query).mappings()
            ]

        return self._database.read(work)

    def remove_ended(self, before_ms: int) -> int:
        """Remove the requests that ended before a time, with their rejected messages. Return how many there were."""
        query = (
            select(requests.c.id)
            .where(requests.c.state.in_(FINAL_STATES), requests.c.finished_at_ms < before_ms)
            .limit(_REMOVED_AT_ONCE)
        )

        def work(connection: Connection) -> int:
            ids = connection.execute(query).scalars().all()
            connection.execute(delete(rejected).where(rejected.c.request_id.in_(ids)))
            connection.execute(delete(requests).where(requests.c.id.in_(ids)))
            return len(ids)

        removed = 0
        while count := self._database.write(work):
            removed += count
        return removed

    def cancel(self, request_id: str, by: str, reason: str, now_ms: int) -> StoredRequest:
        """Cancel a request. Its worker stops at its next write. Return the request, also if it was cancelled before.

        Raises `ReplayRefused` if there is none with the id, or it has completed or failed.
        """
        checked, by = check_request_id(request_id), check_requester(by)
        text = f"cancelled by {by}" + (
            f": {plain_text(reason.strip(), _MAX_REASON_CHARACTERS)}" if reason.strip() else ""
        )

        def work(connection: Connection) -> StoredRequest:
            connection.execute(
                update(requests)
                .where(requests.c.id == checked, requests.c.state.in_(states_before(RequestEvent.CANCEL)))
                .values(
                    state=TRANSITIONS[RequestState.OPEN, RequestEvent.CANCEL],
                    reason=text,
                    heartbeat_ms=None,
                    finished_at_ms=now_ms,
                )
            )
            stored = _existing(connection, checked)
            if stored.state is not RequestState.CANCELLED:
                raise ReplayRefused(f"{checked} is {stored.state} already, and cannot be cancelled", "state")
            return stored

        return self._database.write(work)

    def _check_quotas(self, connection: Connection, requester: str, now_ms: int) -> None:
        quotas = self._quotas
        is_open, is_own = requests.c.state.in_(OPEN_STATES), requests.c.requester == requester
        if _count(connection, quotas.open_requests, is_open) >= quotas.open_requests:
            raise ReplayQuotaReached(
                f"{quotas.open_requests:,} requests are open, and the config allows no more "
                f"(replay.quotas.open_requests): wait until some have ended",
                _WAIT_FOR_OPEN_SECONDS,
            )
        allowed = quotas.open_requests_per_requester
        if _count(connection, allowed, is_open, is_own) >= allowed:
            raise ReplayQuotaReached(
                f"{requester} has {allowed:,} open requests, and the config allows no more "
                f"(replay.quotas.open_requests_per_requester): wait until one has ended, or cancel one",
                _WAIT_FOR_OPEN_SECONDS,
            )
        self._check_day(connection, requester, now_ms)

    def _check_day(self, connection: Connection, requester: str, now_ms: int) -> None:
        allowed = self._quotas.requests_per_day
        # The newest requests, up to the quota: when the oldest of them is a day old, another one is allowed.
        oldest = connection.execute(
            select(requests.c.created_at_ms)
            .where(requests.c.requester == requester, requests.c.id >= first_id_of(now_ms - _DAY_MS + 1))
            .order_by(requests.c.id.desc())
            .offset(allowed - 1)
            .limit(1)
        ).scalar()
        if oldest is not None:
            wait_seconds = max(math.ceil((oldest + _DAY_MS - now_ms) / 1000), 1)
            raise ReplayQuotaReached(
                f"{requester} has created {allowed:,} requests within 24 hours, and the config allows no more "
                f"(replay.quotas.requests_per_day): wait {rough_duration(wait_seconds)}",
                wait_seconds,
            )


def _check_idempotency_key(key: str) -> None:
    if not key or len(key) > _MAX_IDEMPOTENCY_KEY_CHARACTERS or not (key.isascii() and key.isprintable()):
        raise ReplayRefused(
            f"must have 1 to {_MAX_IDEMPOTENCY_KEY_CHARACTERS} printable ASCII characters", "idempotency_key"
        )


def _wait_for_other_creations(connection: Connection) -> None:
    taken = connection.execute(update(locks).where(locks.c.name == "create").values(taken=locks.c.taken + 1))
    if taken.rowcount != 1:
        raise ConfigError(f"the table {locks.name} lacks the row 'create': restore it, or run `waybill replay migrate`")


def _same_key(connection: Connection, request: ReplayRequest, key: str) -> StoredRequest | None:
    """Return the requester's earlier request with the idempotency key. Raises `ReplayRefused` if it differs."""
    condition = (requests.c.requester == request.requester) & (requests.c.idempotency_key == key)
    row = connection.execute(select(requests).where(condition)).mappings().one_or_none()
    if row is None:
        return None
    if row["fingerprint"] != request.requested.fingerprint():
        raise ReplayRefused(
            f"{key!r} is the key of {row['id']}, which is another request: give each request its own key",
            "idempotency_key",
        )
    return StoredRequest.of(row)


def _insert(connection: Connection, request: ReplayRequest, idempotency_key: str | None) -> None:
    # Creations wait for each other, so nobody else inserts the requester in between.
    known = select(requesters.c.requester).where(requesters.c.requester == request.requester)
    if connection.execute(known).first() is None:
        connection.execute(insert(requesters).values(requester=request.requester, last_claimed_ms=0))
    connection.execute(
        insert(requests).values(
            id=request.id,
            document=request.requested.to_json().decode(),
            stream=request.requested.stream,
            requester=request.requester,
            priority=request.requested.priority,
            created_at_ms=request.created_at_ms,
            idempotency_key=idempotency_key,
            fingerprint=request.requested.fingerprint(),
            state=RequestState.OPEN,
            reason="",
            claim=0,
            not_before_ms=0,
            found=0,
            delivered=0,
            rejected=0,
            share=0.0,
        )
    )


def _count(connection: Connection, at_most: int, *conditions: ColumnElement[bool]) -> int:
    """Return the number of requests that meet the conditions, but not more than `at_most`."""
    found = select(requests.c.id).where(*conditions).limit(at_most).subquery()
    return connection.execute(select(func.count()).select_from(found)).scalar_one()


def _find(connection: Connection, condition: ColumnElement[bool]) -> StoredRequest | None:
    row = connection.execute(select(requests).where(condition)).mappings().one_or_none()
    return None if row is None else StoredRequest.of(row)


def _existing(connection: Connection, request_id: str) -> StoredRequest:
    stored = _find(connection, requests.c.id == request_id)
    if stored is None:
        raise ReplayRefused(f"there is no replay request {request_id}: see `waybill replay ls`", "id")
    return stored


def _follows(columns: Sequence[ColumnElement[object]], values: Sequence[object]) -> ColumnElement[bool]:
    """Return the condition that a row follows `values` in the order of `columns`."""
    # Not a comparison of row values, for which MySQL does not use the primary key.
    first, *others = zip(columns, values, strict=True)
    column, value = first
    if not others:
        return column > value
    return (column > value) | ((column == value) & _follows([each for each, _ in others], [each for _, each in others]))
