"""The queue and its claims against a model in memory: any order of creations, claims, writes, losses and ends."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import replay_databases as helpers
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from replay_databases import NOW, TIMEOUT_MS, wanted

from waybill.base.errors import ReplayClaimLost, ReplayQuotaReached, ReplayRefused
from waybill.config.models.replay import ReplayQuotas
from waybill.replay.requests.claims import Claim
from waybill.replay.requests.migrations import migrate
from waybill.replay.requests.states import RequestEvent, RequestState
from waybill.replay.requests.stored import Progress, RejectedMessage

QUOTAS = ReplayQuotas(open_requests=6, open_requests_per_requester=4, requests_per_day=1_000)
REQUESTERS = ("ada", "bob", "eve")


@dataclass
class Expected:
    """What the model knows of one request."""

    id: str
    requester: str
    priority: int
    state: RequestState = RequestState.OPEN
    claim: int = 0
    heartbeat: int | None = None
    not_before: int = 0
    cursor: int | None = None
    rejected: set[int] = field(default_factory=set)

    @property
    def is_open(self) -> bool:
        return self.state in (RequestState.OPEN, RequestState.STARTED, RequestState.ONGOING)

    def is_claimed(self, now: int) -> bool:
        return self.heartbeat is not None and self.heartbeat > now - TIMEOUT_MS


class QueueMachine(RuleBasedStateMachine):
    """Waybill's queue beside the model."""

    claims_made = Bundle("claims_made")

    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="waybill-replay-"))
        self.database = helpers.open_database(helpers.sqlite_connection(self.directory / "replay.db"))
        migrate(self.database)
        self.queue = helpers.queue_of(self.database, QUOTAS)
        self.claims = helpers.claims_of(self.database)
        self.now = NOW
        self.requests: dict[str, Expected] = {}
        self.last_claimed = dict.fromkeys(REQUESTERS, 0)

    def teardown(self) -> None:
        if hasattr(self, "database"):
            self.database.close()
            shutil.rmtree(self.directory)

    @rule(milliseconds=st.sampled_from([1, 1_000, TIMEOUT_MS - 1, TIMEOUT_MS, 3 * TIMEOUT_MS]))
    def wait(self, milliseconds: int) -> None:
        self.now += milliseconds

    @rule(requester=st.sampled_from(REQUESTERS), priority=st.integers(0, 1))
    def create(self, requester: str, priority: int) -> None:
        self.now += 1
        mine = [each for each in self.requests.values() if each.is_open and each.requester == requester]
        is_full = len(mine) >= 4 or sum(each.is_open for each in self.requests.values()) >= 6
        try:
            stored, _ = self.queue.create(wanted(priority=priority), requester, self.now)
        except ReplayQuotaReached:
            assert is_full
            return
        assert not is_full
        self.requests[stored.request.id] = Expected(stored.request.id, requester, priority)

    @rule(target=claims_made, worker=st.sampled_from(["w1", "w2"]))
    def claim(self, worker: str) -> object:
        claim = self.claims.claim(worker, self.now)
        expected = self._next()
        if expected is None:
            assert claim is None
            return multiple()
        assert claim is not None
        assert (claim.request.id, claim.number) == (expected.id, expected.claim + 1)
        assert claim.progress.cursor == (None if expected.cursor is None else {"next": expected.cursor})
        expected.claim += 1
        expected.heartbeat = self.now
        expected.state = RequestState.STARTED if expected.state is RequestState.OPEN else expected.state
        self.last_claimed[expected.requester] = self.now
        return claim

    def _next(self) -> Expected | None:
        """Return the request that is to be served next, from the rules in words."""
        free = [
            each
            for each in self.requests.values()
            if each.is_open and not each.is_claimed(self.now) and each.not_before <= self.now
        ]

        def order(each: Expected) -> tuple[int, int, int, str]:
            running = sum(
                other.requester == each.requester and other.is_open and other.is_claimed(self.now)
                for other in self.requests.values()
            )
            return -each.priority, running, self.last_claimed[each.requester], each.id

        return min(free, key=order, default=None)

    def _holds(self, claim: Claim) -> Expected | None:
        """Return the request if the claim is its last one, and neither it nor the claim has ended."""
        expected = self.requests[claim.request.id]
        held = expected.is_open and expected.claim == claim.number and expected.heartbeat is not None
        return expected if held else None

    @rule(claim=claims_made)
    def heartbeat(self, claim: Claim) -> None:
        expected = self._holds(claim)
        try:
            self.claims.heartbeat(claim, self.now)
        except ReplayClaimLost:
            assert expected is None
            return
        assert expected is not None
        expected.heartbeat = self.now

    @rule(claim=claims_made, cursor=st.integers(0, 9), offsets=st.sets(st.integers(0, 5), max_size=3))
    def progress(self, claim: Claim, cursor: int, offsets: set[int]) -> None:
        expected = self._holds(claim)
        messages = [RejectedMessage("flights", 0, offset, "400") for offset in offsets]
        try:
            self.claims.record_progress(claim, self.now, Progress({"next": cursor}), messages)
        except ReplayClaimLost:
            assert expected is None
            return
        assert expected is not None
        expected.state, expected.cursor, expected.heartbeat = RequestState.ONGOING, cursor, self.now
        expected.rejected |= offsets

    @rule(claim=consumes(claims_made), pause=st.sampled_from([0, 5_000]))
    def release(self, claim: Claim, pause: int) -> None:
        expected = self._holds(claim)
        try:
            self.claims.release(claim, self.now, not_before_ms=self.now + pause)
        except ReplayClaimLost:
            assert expected is None
            return
        assert expected is not None
        expected.heartbeat, expected.not_before = None, self.now + pause

    @rule(claim=claims_made, event=st.sampled_from([RequestEvent.COMPLETE, RequestEvent.FAIL]))
    def finish(self, claim: Claim, event: RequestEvent) -> None:
        expected = self._holds(claim)
        end = RequestState.COMPLETED if event is RequestEvent.COMPLETE else RequestState.FAILED
        known = self.requests[claim.request.id]
        is_repeated = known.claim == claim.number and known.state is end
        try:
            self.claims.finish(claim, self.now, event)
        except ReplayClaimLost:
            assert expected is None
            assert not is_repeated
            return
        assert expected is not None or is_repeated
        known.state, known.heartbeat = end, None

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if not self.requests:
            return
        expected = self.requests[data.draw(st.sampled_from(sorted(self.requests)))]
        try:
            self.queue.cancel(expected.id, "ada", "", self.now)
        except ReplayRefused:
            assert expected.state in (RequestState.COMPLETED, RequestState.FAILED)
            return
        assert expected.is_open or expected.state is RequestState.CANCELLED
        expected.state, expected.heartbeat = RequestState.CANCELLED, None

    @invariant()
    def the_database_has_what_the_model_has(self) -> None:
        if not hasattr(self, "queue"):
            return
        found = {stored.request.id: stored for stored in self.queue.page(limit=1_000)}
        assert found.keys() == self.requests.keys()
        for expected in self.requests.values():
            stored = found[expected.id]
            assert (stored.state, stored.claim, stored.heartbeat_ms) == (
                expected.state,
                expected.claim,
                expected.heartbeat,
            )
            assert stored.progress.cursor == (None if expected.cursor is None else {"next": expected.cursor})
            assert stored.rejected == len(expected.rejected)


_SETTINGS = settings(stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))


def test_the_queue_does_what_the_model_does() -> None:
    run_state_machine_as_test(QueueMachine, settings=settings(_SETTINGS, max_examples=12))


@pytest.mark.deep
def test_the_queue_does_what_the_model_does_in_many_histories() -> None:
    run_state_machine_as_test(QueueMachine, settings=settings(_SETTINGS, max_examples=300))
