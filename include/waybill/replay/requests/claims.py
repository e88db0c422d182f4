"""How workers claim replay requests and serve them, so that no request is lost and late writes are refused.

A claim is a number of its request, which grows with each claim. It is the fencing token: every write of a worker has it
in the condition of its UPDATE. The write is refused (`ReplayClaimLost`) if another worker has claimed the request since
then, if the request has ended, or if the claim was given back.

A worker whose heartbeat is older than the claim timeout may be dead, so other workers can claim its request. If the
worker is only late, and nobody has claimed the request, its claim is still the last one and its writes are accepted. If
another worker has claimed the request, all its writes are refused. It may have sent messages to the target before the
first refused write: a webhook may get messages twice.

Assumption: the clocks of the workers differ by less than the claim timeout. A worker with a fast clock claims requests
too early; then workers claim the request alternately, and the numbers keep every write in order.

After a lost connection, a write may be repeated though it was committed: progress is given in totals, rejected messages
are stored if absent, and an end or a release that is already stored is accepted. A claim that was committed and not
received has no heartbeats, so others get the request after the claim timeout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Select,
    case,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)

from waybill.base.errors import ReplayClaimLost, ReplayRefused, WaybillError
from waybill.replay.requests.database import Database, rejected, requesters, requests
from waybill.replay.requests.request import ReplayRequest
from waybill.replay.requests.states import OPEN_STATES, TRANSITIONS, RequestEvent, RequestState, states_before
from waybill.replay.requests.stored import (
    Progress,
    RejectedMessage,
    UnreadableRequest,
    cursor_json,
    is_claimed_at,
    plain_text,
    read_request,
)

MAX_CURSOR_CHARACTERS = 1 << 20
_MAX_REASON_CHARACTERS = 2_000
_MAX_WORKER_CHARACTERS = 200
_MAX_CANDIDATES = 64
_ROUNDS = 3
_INSERTED_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Claim:
    """One worker's right to serve one request."""

    request: ReplayRequest
    number: int
    worker: str
    progress: Progress
    """The progress of the previous workers."""


class Claims:
    """The claims of requests in a database.

    Every method raises `ReplayUnavailable` when the database does not answer.
    """

    def __init__(self, database: Database, claim_timeout: timedelta) -> None:
        """`claim_timeout`: the age of a heartbeat from which others may claim the request."""
        self._database = database
        self._claim_timeout_ms = claim_timeout // timedelta(milliseconds=1)
        self.unreadable: dict[str, WaybillError] = {}
        """Requests that could not be read, by id: `claim` leaves them out. A person must look at them."""

    def claim(self, worker: str, now_ms: int) -> Claim | None:
        """Claim a request; None if no request can be served now.

        The order: the highest priority; then the requester with the fewest claimed requests; then the requester who has
        waited longest since their last claim; then the oldest request. Workers that claim at the same moment do not
        wait for each other, and may see the order before the other claim.
        """
        name = plain_text(worker, _MAX_WORKER_CHARACTERS)
        return self._database.write(lambda connection: self._claim(connection, name, now_ms))

    def count(self, now_ms: int) -> int:
        """Return how many requests can be claimed now, up to 64."""
        query = self.candidates(now_ms)
        return self._database.read(lambda connection: len(connection.execute(query).all()))

    def heartbeat(self, claim: Claim, now_ms: int) -> None:
        """Keep a claim. Raises `ReplayClaimLost`: then the worker must stop, and write nothing more."""
        self._database.write(lambda connection: self._write(connection, claim, None, now_ms, {}))

    def record_progress(
        self, claim: Claim, now_ms: int, progress: Progress, rejected_messages: Sequence[RejectedMessage] = ()
    ) -> None:
        """Store the progress of a request, with the messages that the target has rejected since the last call.

        It is also a heartbeat.

        Both are stored, or neither. Raises `ReplayClaimLost`, and `ReplayRefused` for a cursor that is too large.
        """
        cursor = cursor_json(progress.cursor)
        if cursor is not None and len(cursor) > MAX_CURSOR_CHARACTERS:
            raise ReplayRefused(
                f"has {len(cursor):,} characters, and {MAX_CURSOR_CHARACTERS:,} are allowed: store what is large in S3",
                "cursor",
            )
        values = {
            "cursor": cursor,
            "found": progress.found,
            "delivered": progress.delivered,
            "share": min(max(progress.share, 0.0), 1.0),
        }

        def work(connection: Connection) -> None:
            self._write(connection, claim, RequestEvent.PROGRESS, now_ms, values)
            _insert_rejected(connection, claim, now_ms, rejected_messages)

        self._database.write(work)

    def reject(self, claim: Claim, now_ms: int, messages: Sequence[RejectedMessage]) -> None:
        """Store messages that the target rejected, each once. It is also a heartbeat. Raises `ReplayClaimLost`."""

        def work(connection: Connection) -> None:
            self._write(connection, claim, None, now_ms, {})
            _insert_rejected(connection, claim, now_ms, messages)

        self._database.write(work)

    def release(self, claim: Claim, now_ms: int, *, not_before_ms: int = 0) -> None:
        """Give a claim back, so that others continue at its cursor, but not before `not_before_ms`.

        A worker releases a claim when its turn is over, or its target does not answer. Raises `ReplayClaimLost`.
        """
        values = {"heartbeat_ms": None, "not_before_ms": not_before_ms}
        self._database.write(lambda connection: self._write(connection, claim, RequestEvent.RELEASE, now_ms, values))

    def finish(self, claim: Claim, now_ms: int, event: RequestEvent, reason: str = "") -> None:
        """End a request: `RequestEvent.COMPLETE`, or `RequestEvent.FAIL` with the reason. Raises `ReplayClaimLost`."""
        if event not in (RequestEvent.COMPLETE, RequestEvent.FAIL):
            raise ValueError(f"{event} does not end a request")
        values: dict[str, Any] = {
            "heartbeat_ms": None,
            "finished_at_ms": now_ms,
            "reason": plain_text(reason, _MAX_REASON_CHARACTERS),
        }
        if event is RequestEvent.COMPLETE:
            values["share"] = 1.0
        self._database.write(lambda connection: self._write(connection, claim, event, now_ms, values))

    def _claim(self, connection: Connection, worker: str, now_ms: int) -> Claim | None:
        for _ in range(_ROUNDS):
            candidates = connection.execute(self.candidates(now_ms)).scalars().all()
            for request_id in candidates:
                row = connection.execute(self.locked(request_id, now_ms)).mappings().one_or_none()
                stored = None if row is None else read_request(row)
                if isinstance(stored, UnreadableRequest):
                    self.unreadable[request_id] = stored.error
                elif stored is not None and self._take(connection, request_id, stored.claim, worker, now_ms):
                    return Claim(stored.request, stored.claim + 1, worker, stored.progress)
            # Other workers claimed all these candidates first. There may be more.
            if len(candidates) < _MAX_CANDIDATES:
                return None
        return None

    def candidates(self, now_ms: int) -> Select[str]:
        """Return the query for the ids of claimable requests, in the order in which they are served."""
        running = (
            select(requests.c.requester, func.count().label("claimed"))
            .where(requests.c.state.in_(OPEN_STATES), is_claimed_at(now_ms, self._claim_timeout_ms))
            .group_by(requests.c.requester)
            .subquery("running")
        )
        return (
            select(requests.c.id)
            .join(requesters, requesters.c.requester == requests.c.requester)
            .outerjoin(running, running.c.requester == requests.c.requester)
            # Leave out requests that cannot be read: many of them would displace the other candidates.
            .where(*self._may_be_claimed(now_ms), requests.c.id.not_in(list(self.unreadable)))
            .order_by(
                requests.c.priority.desc(),
                func.coalesce(running.c.claimed, 0),
                requesters.c.last_claimed_ms,
                requests.c.id,
            )
            .limit(_MAX_CANDIDATES)
        )

    def locked(self, request_id: str, now_ms: int) -> Select[Any]:
        """Return the query that locks one request.

        It returns no row if another worker has locked or claimed the request.

        The lock is a separate query from the sorted one: MySQL would lock every row that it sorts. SQLite has no such
        lock, and needs none, since its transactions that write wait for each other.
        """
        return (
            select(requests)
            .where(requests.c.id == request_id, *self._may_be_claimed(now_ms))
            .with_for_update(skip_locked=True)
        )

    def _may_be_claimed(self, now_ms: int) -> list[ColumnElement[bool]]:
        late = now_ms - self._claim_timeout_ms
        return [
            requests.c.state.in_(OPEN_STATES),
            requests.c.not_before_ms <= now_ms,
            or_(requests.c.heartbeat_ms.is_(None), requests.c.heartbeat_ms <= late),
        ]

    def _take(self, connection: Connection, request_id: str, last_claim: int, worker: str, now_ms: int) -> bool:
        # Without a lock, the number of the last claim decides.
        taken = connection.execute(
            update(requests)
            .where(requests.c.id == request_id, requests.c.claim == last_claim, *self._may_be_claimed(now_ms))
            .values(
                state=_state_after(RequestEvent.CLAIM),
                claim=last_claim + 1,
                worker=worker,
                heartbeat_ms=now_ms,
                started_at_ms=func.coalesce(requests.c.started_at_ms, literal(now_ms, BigInteger)),
            )
        )
        if taken.rowcount != 1:
            return False
        requester = select(requests.c.requester).where(requests.c.id == request_id).scalar_subquery()
        connection.execute(update(requesters).where(requesters.c.requester == requester).values(last_claimed_ms=now_ms))
        return True

    def _write(
        self, connection: Connection, claim: Claim, event: RequestEvent | None, now_ms: int, values: dict[str, Any]
    ) -> None:
        """Change the claimed request; `event` None: its state stays. Raises `ReplayClaimLost` if it is not claimed."""
        states = states_before(event) if event else states_before(RequestEvent.RELEASE)
        changed: dict[str, Any] = {"heartbeat_ms": now_ms, **values}
        if event:
            changed["state"] = _state_after(event)
        done = connection.execute(
            update(requests)
            .where(
                requests.c.id == claim.request.id,
                requests.c.claim == claim.number,
                requests.c.heartbeat_ms.is_not(None),
                requests.c.state.in_(states),
            )
            .values(**changed)
        )
        if done.rowcount != 1:
            _accept_or_refuse(connection, claim, event)


def _state_after(event: RequestEvent) -> ColumnElement[str]:
    """Return the SQL expression of a request's state after an event, from the table of transitions."""
    after = {str(state): str(TRANSITIONS[state, event]) for state in states_before(event)}
    return case(after, value=requests.c.state, else_=requests.c.state)


def _accept_or_refuse(connection: Connection, claim: Claim, event: RequestEvent | None) -> None:
    """Accept an end or a release that an earlier transaction has committed. Otherwise raise `ReplayClaimLost`."""
    row = connection.execute(select(requests).where(requests.c.id == claim.request.id)).mappings().one_or_none()
    where = f"replay request {claim.request.id}"
    if row is None:
        raise ReplayClaimLost(f"{where} does not exist any more")
    state, is_last = RequestState(row["state"]), row["claim"] == claim.number
    if (
        is_last
        and event in (RequestEvent.COMPLETE, RequestEvent.FAIL)
        and state is TRANSITIONS[RequestState.STARTED, event]
    ):
        return
    if is_last and event is RequestEvent.RELEASE and not state.is_final and row["heartbeat_ms"] is None:
        return
    if state.is_final:
        reason = f" ({row['reason']})" if row["reason"] else ""
        raise ReplayClaimLost(f"{where} is {state}{reason}, so worker {claim.worker} must stop")
    if is_last:
        raise ReplayClaimLost(f"{where}: worker {claim.worker} has given its claim {claim.number} back")
    raise ReplayClaimLost(
        f"{where}: claim {claim.number} of worker {claim.worker} is lost to claim {row['claim']} of {row['worker']}, "
        f"since it had sent no heartbeat in time"
    )


def _insert_rejected(connection: Connection, claim: Claim, now_ms: int, messages: Sequence[RejectedMessage]) -> None:
    """Store rejected messages that are not stored yet.

    The caller has written to the request before, so its row is locked.
    """
    by_place = {(each.topic, each.partition, each.offset): each for each in messages}
    if not by_place:
        return
    stored: set[tuple[Any, ...]] = set()
    for topic, partition in {place[:2] for place in by_place}:
        offsets = sorted(place[2] for place in by_place if place[:2] == (topic, partition))
        found = connection.execute(
            select(rejected.c.message_offset).where(
                rejected.c.request_id == claim.request.id,
                rejected.c.topic == topic,
                rejected.c.partition_number == partition,
                rejected.c.message_offset.between(offsets[0], offsets[-1]),
            )
        )
        stored |= {(topic, partition, offset) for offset in found.scalars()}
    new = [
        {
            "request_id": claim.request.id,
            "topic": each.topic,
            "partition_number": each.partition,
            "message_offset": each.offset,
            "reason": plain_text(each.reason, _MAX_REASON_CHARACTERS),
            "at_ms": now_ms,
        }
        for place, each in by_place.items()
        if place not in stored
    ]
    for begin in range(0, len(new), _INSERTED_AT_ONCE):
        connection.execute(insert(rejected), new[begin : begin + _INSERTED_AT_ONCE])
    if new:
        connection.execute(
            update(requests).where(requests.c.id == claim.request.id).values(rejected=requests.c.rejected + len(new))
        )
