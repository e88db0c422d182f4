"""Workers: short runs that claim replay requests and serve each of them for one turn.

A turn: claim → the first time, plan the ranges → read → deliver → store the cursor after the delivered messages → give
the claim back, or end the request. If a worker dies, another worker claims the request when the heartbeats stop, and
continues at the cursor. Messages that were delivered after the cursor was stored are delivered again: a webhook gets
them twice, and the exactly-once targets recognize them.

After an error that can be repaired (a server that does not answer, a damaged object, a missing connection), the worker
releases the request for some time, and stores the reason; after `give_up_after` without progress the request fails.
After any other error, the request fails at once.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from waybill.archive.ingest.services import connect
from waybill.archive.ingest.target import IngestServices
from waybill.base import failpoints
from waybill.base.errors import ReplayClaimLost, ReplayRefused, ReplayUnavailable, UnexpectedFailure, WaybillError
from waybill.config import names
from waybill.config.models import Config
from waybill.config.models.quantities import format_duration
from waybill.replay.requests.claims import Claim, Claims
from waybill.replay.requests.cursor import Cursor, CursorPlace
from waybill.replay.requests.database import Database
from waybill.replay.requests.delivery.outcome import TargetUnavailable
from waybill.replay.requests.delivery.seen import SeenIds
from waybill.replay.requests.delivery.steps import Delivery, DeliveryStep, open_delivery
from waybill.replay.requests.matching import WantedMessages
from waybill.replay.requests.message import ReplayedMessage
from waybill.replay.requests.ranges import find_ranges, find_slot_ranges
from waybill.replay.requests.reader import Reader
from waybill.replay.requests.request import replay_of
from waybill.replay.requests.states import RequestEvent

logger = logging.getLogger(__name__)

_TURN_SECONDS = 60.0
"""How long a turn is: after this time, other requests are served."""
_SAVE_SECONDS = 5.0
"""The interval in which the cursor is stored while no message is found."""
_FIRST_WAIT_SECONDS = 15.0
_LONGEST_WAIT_SECONDS = 300.0
_PAUSE_STEP_SECONDS = 0.5


@dataclass(slots=True)
class Served:
    """The results of one worker."""

    turns: int = 0
    completed: int = 0
    failed: int = 0
    delivered: int = 0
    """The number of delivered messages."""
    problems: list[str] = field(default_factory=list)
    """Problems for a person: requests that cannot be read, and unexpected exceptions."""


def count_open(config: Config) -> int:
    """Return how many requests can be claimed now. Raises `ReplayUnavailable`, or `ConfigError` if replay is off."""
    with Database.of(config) as database:
        return Claims(database, replay_of(config).claim_timeout).count(_now_ms())


def serve(config: Config, *, worker: str, seconds: float, should_stop: Callable[[], bool] = lambda: False) -> Served:
    """Serve requests for about `seconds` at most, until none is left or `should_stop`. Return the results.

    `worker` is the name of the worker for lists and logs. Raises `ReplayUnavailable` when the database does not answer;
    a request that this worker has claimed then waits for the claim timeout.
    """
    deadline = time.monotonic() + seconds
    served = Served()
    replay = replay_of(config)
    with Database.of(config) as database:
        claims = Claims(database, replay.claim_timeout)
        while time.monotonic() < deadline and not should_stop():
            claim = claims.claim(worker, _now_ms())
            if claim is None:
                break
            failpoints.reach("replay.claimed")
            turn = min(deadline, time.monotonic() + _TURN_SECONDS)
            _serve_alone(_Turn(config, claims, claim, replay.claim_timeout, turn, should_stop, served), claim, served)
            served.turns += 1
        served.problems += [str(error) for error in claims.unreadable.values()]
    return served


def _serve_alone(turn: _Turn, claim: Claim, served: Served) -> None:
    """Serve a request. If even its release fails, its claim ends after the timeout, and other requests are served."""
    try:
        turn.run()
    except ReplayUnavailable:
        raise
    except Exception as error:
        failure = UnexpectedFailure(f"the release of replay request {claim.request.id}", error)
        logger.exception("%s", failure)
        served.problems.append(str(failure))


class _Stopped(Exception):
    """The worker ends while it waits for a target."""


class _Turn:
    """One claim of one request."""

    def __init__(
        self,
        config: Config,
        claims: Claims,
        claim: Claim,
        claim_timeout: timedelta,
        deadline: float,
        should_stop: Callable[[], bool],
        served: Served,
    ) -> None:
        self._config, self._claims, self._claim = config, claims, claim
        self._request = claim.request
        self._heartbeat_seconds = claim_timeout.total_seconds() / 4
        self._deadline, self._is_stopping = deadline, should_stop
        self._served = served
        self._cursor: Cursor | None = None
        self._stored_at = time.monotonic()

    # --- the turn ---

    def run(self) -> None:
        """Serve the request until its end, or the end of the turn. Raises `ReplayUnavailable`."""
        try:
            self._serve()
        except ReplayClaimLost as error:
            logger.info("%s", error)
        except ReplayUnavailable:
            raise
        except _Stopped:
            self._release(0)
        except ReplayRefused as error:
            self._fail(str(error))
        except TargetUnavailable as error:
            self._try_later(str(error), error.wait_seconds)
        except WaybillError as error:
            self._try_later(str(error), 0)
        except Exception as error:  # a bug in one turn must not stop the other requests
            failure = UnexpectedFailure(f"replay request {self._request.id}", error)
            logger.exception("replay request %s cannot be served", self._request.id)
            self._served.problems.append(str(failure))
            self._try_later(str(failure), 0)

    def _serve(self) -> None:
        # Read the cursor before any call that can fail, so that a failure keeps it.
        if self._claim.progress.cursor is not None:
            self._cursor = Cursor.of(self._claim.progress.cursor)
        stream = self._request.requested.stream
        with ExitStack() as stack:
            services = stack.enter_context(connect(self._config, stream))
            cursor = self._planned(services)
            delivery = stack.enter_context(
                open_delivery(
                    self._config,
                    self._request,
                    cursor.delivery,
                    services.store,
                    save=self._save_delivery,
                    pause=self._pause,
                )
            )
            self._deliver(services, cursor, delivery)
            if not cursor.is_at_end:
                self._release(0)
                return
            delivery.finish()
            failpoints.reach("replay.finished")
            self._claims.finish(self._claim, _now_ms(), RequestEvent.COMPLETE)
            self._served.completed += 1
            logger.info("replay request %s: %d messages delivered", self._request.id, cursor.delivered)
            _remove_seen(services, self._request.id)

    def _planned(self, services: IngestServices) -> Cursor:
        """Return the cursor of the claim; for the first claim, make and store a new cursor."""
        if self._cursor is None or not self._cursor.is_planned:
            requested = self._request.requested
            stream = self._config.stream(requested.stream)
            if stream.is_kinesis:
                from waybill.archive.ingest.kinesis.slot_source import slots_of

                slots = slots_of(services.source)
                ranges = find_slot_ranges(stream, self._wanted, services.store, slots, services.coordinator)
            else:
                ranges = find_ranges(stream, self._wanted, services.store, services.kafka, services.coordinator)
            planned = Cursor.at_beginning(ranges)
            if self._cursor is not None:
                planned.failing_since_ms = self._cursor.failing_since_ms
            self._cursor = planned
            failpoints.reach("replay.planned")
            self._save()
        return self._cursor

    def reader(self, services: IngestServices, should_stop: Callable[[], bool]) -> Reader:
        """Return the reader of the request's messages."""
        stream = self._config.stream(self._request.requested.stream)
        kafka = None if stream.is_kinesis else services.kafka
        return Reader(services.store, kafka, services.coordinator, stream.generation, self._wanted, should_stop)

    @property
    def _wanted(self) -> WantedMessages:
        requested = self._request.requested
        return WantedMessages(requested.keys, requested.from_ms, requested.to_ms)

    def _deliver(self, services: IngestServices, cursor: Cursor, delivery: Delivery) -> None:
        """Read and deliver from the cursor on, and store it after each step."""
        seen = _StoredSeen(services, self._request.id, self._claim.number) if self._drops_duplicates else None
        messages = _TurnMessages(self, services, cursor, seen, delivery.expected_messages())
        for step in _with_state(delivery.steps(messages.read()), cursor, delivery):
            failpoints.reach("replay.delivered")
            messages.take(step)
            if seen is not None:
                seen.store(cursor.found)
                failpoints.reach("replay.seen_stored")
            self._has_progressed()
            cursor.delivery = delivery.state
            self._served.delivered += step.messages - len(step.rejections)
            self._save(step)
            failpoints.reach("replay.cursor_stored")
        # All messages that were read are delivered now.
        cursor.place, cursor.found, cursor.duplicates = messages.read_to, messages.found, messages.duplicates
        cursor.delivery = delivery.state
        self._has_progressed()
        self._save()

    @property
    def _drops_duplicates(self) -> bool:
        return replay_of(self._config).drop_duplicates

    # --- time and the claim ---

    def should_end(self) -> bool:
        """Return whether the turn is over. It also sends the heartbeats, so call it often."""
        self.keep_claim()
        return self._is_stopping() or time.monotonic() >= self._deadline

    def keep_claim(self) -> None:
        """Send a heartbeat when it is due. Raises `ReplayClaimLost`."""
        if time.monotonic() - self._stored_at >= self._heartbeat_seconds:
            self._claims.heartbeat(self._claim, _now_ms())
            self._stored_at = time.monotonic()

    def save_now_and_then(self) -> None:
        """Store the cursor if it was last stored too long ago."""
        if time.monotonic() - self._stored_at >= min(_SAVE_SECONDS, self._heartbeat_seconds):
            self._save()

    def _pause(self, seconds: float) -> None:
        """Wait, with heartbeats; 0 seconds is a heartbeat, if it is due. Raises `_Stopped` when the worker ends."""
        until = time.monotonic() + seconds
        while True:
            if self._is_stopping():
                raise _Stopped
            self.keep_claim()
            left = until - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, _PAUSE_STEP_SECONDS))

    # --- the database ---

    def _save(self, step: DeliveryStep | None = None) -> None:
        assert self._cursor is not None
        rejections = () if step is None else step.rejections
        self._claims.record_progress(self._claim, _now_ms(), self._cursor.progress(), rejections)
        self._stored_at = time.monotonic()

    def _save_delivery(self, state: dict[str, Any]) -> None:
        assert self._cursor is not None
        self._cursor.delivery = state
        self._save()

    def _has_progressed(self) -> None:
        assert self._cursor is not None
        self._cursor.failing_since_ms, self._cursor.problem = None, ""

    def _release(self, wait_seconds: float) -> None:
        try:
            self._claims.release(self._claim, _now_ms(), not_before_ms=_now_ms() + int(wait_seconds * 1000))
        except ReplayClaimLost as error:
            logger.info("%s", error)

    def _fail(self, reason: str) -> None:
        logger.warning("replay request %s fails: %s", self._request.id, reason)
        try:
            self._claims.finish(self._claim, _now_ms(), RequestEvent.FAIL, reason)
            self._served.failed += 1
        except ReplayClaimLost as error:
            logger.info("%s", error)

    def _try_later(self, reason: str, wait_seconds: float) -> None:
        """Release the request for some time, and store the reason; fail the request if it has failed for too long."""
        now_ms = _now_ms()
        cursor = self._cursor = self._cursor or Cursor.unplanned()
        first_ms = cursor.failing_since_ms = cursor.failing_since_ms or now_ms
        cursor.problem = reason
        limit = replay_of(self._config).give_up_after
        if now_ms - first_ms >= limit // timedelta(milliseconds=1):
            self._fail(f"no progress for {format_duration(limit)} (replay.give_up_after): {reason}")
            return
        # Wait as long as the request has been failing, so the pause doubles each time.
        own_wait_seconds = min(max(_FIRST_WAIT_SECONDS, (now_ms - first_ms) / 1000), _LONGEST_WAIT_SECONDS)
        wait_seconds = max(wait_seconds, own_wait_seconds)
        logger.warning("replay request %s is tried again in %.0f s: %s", self._request.id, wait_seconds, reason)
        try:
            self._save()
        except ReplayClaimLost as error:
            logger.info("%s", error)
            return
        self._release(wait_seconds)


def _with_state(steps: Iterator[DeliveryStep], cursor: Cursor, delivery: Delivery) -> Iterator[DeliveryStep]:
    """Yield the steps. If the target does not answer, store the breaker's state in the cursor, for the next attempt."""
    try:
        yield from steps
    except TargetUnavailable:
        cursor.delivery = delivery.state
        raise


class _TurnMessages:
    """The messages of a turn, in order, and the places after them."""

    def __init__(
        self, turn: _Turn, services: IngestServices, cursor: Cursor, seen: _StoredSeen | None, expected_messages: int
    ) -> None:
        """`expected_messages`: this number of messages is read even if the turn is over."""
        self._turn, self._services, self._cursor, self._seen = turn, services, cursor, seen
        self._expected = expected_messages
        self._waiting: deque[tuple[CursorPlace, int, int]] = deque()
        """For each message that is read and not done: the place behind it, and the figures there."""
        self.read_to = cursor.place
        self.found, self.duplicates = cursor.found, cursor.duplicates
        """At `read_to`."""

    def read(self) -> Iterator[ReplayedMessage]:
        """Yield the messages from the cursor on, without duplicates, until the end or the end of the turn."""
        turn, cursor = self._turn, self._cursor
        reader = turn.reader(self._services, self._is_over)
        with closing(reader.pieces(cursor)) as pieces:
            for number, piece in pieces:
                for message in piece.messages:
                    if self._is_over():
                        return
                    self.found += 1
                    self.read_to = cursor.place_behind(number, message.offset + 1)
                    if self._seen is not None and self._seen.is_duplicate(message):
                        self.duplicates += 1
                        continue
                    self._waiting.append((self.read_to, self.found, self.duplicates))
                    self._expected = max(self._expected - 1, 0)
                    yield message
                self.read_to = cursor.place_behind(number, piece.next_offset)
                if not self._waiting:
                    cursor.place, cursor.found, cursor.duplicates = self.read_to, self.found, self.duplicates
                    turn.save_now_and_then()

    def take(self, step: DeliveryStep) -> None:
        """Move the cursor to the place after the messages of a step."""
        cursor = self._cursor
        for _ in range(step.messages):
            cursor.place, cursor.found, cursor.duplicates = self._waiting.popleft()
        cursor.delivered += step.messages - len(step.rejections)

    def _is_over(self) -> bool:
        return self._turn.should_end() and not self._expected


class _StoredSeen:
    """The ids of the request's messages, which are stored in S3 before the cursor moves past these messages."""

    def __init__(self, services: IngestServices, request_id: str, claim: int) -> None:
        self._store, self._request_id, self._claim = services.store, request_id, claim
        self._ids = SeenIds()
        prefix = names.replay_seen_prefix(self._store.prefix, request_id)
        self._ids.add_stored((key, self._store.read(key)) for key in self._store.keys(prefix))

    def is_duplicate(self, message: ReplayedMessage) -> bool:
        return self._ids.is_duplicate(message.content_id(), message.topic_partition, message.offset)

    def store(self, found: int) -> None:
        changes = self._ids.changes()
        if changes is not None:
            key = names.replay_seen_key(self._store.prefix, self._request_id, found, self._claim)
            self._store.replace(key, changes)


def _remove_seen(services: IngestServices, request_id: str) -> None:
    for key in list(services.store.keys(names.replay_seen_prefix(services.store.prefix, request_id))):
        services.store.remove_if_exists(key)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
