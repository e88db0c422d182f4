"""The queue of replay requests and the claims of workers, on SQLite and on PostgreSQL."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import catalog_servers
import pytest
import replay_databases as helpers
from replay_databases import NOW, TIMEOUT_MS, wanted
from sqlalchemy import Connection as SqlConnection
from sqlalchemy import delete, event, select, update
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import OperationalError

from waybill.base.errors import ReplayClaimLost, ReplayQuotaReached, ReplayRefused
from waybill.config.connections.database import DatabaseEndpoint
from waybill.config.models.replay import ReplayQuotas
from waybill.replay.requests.claims import MAX_CURSOR_CHARACTERS, Claim, Claims
from waybill.replay.requests.database import Database, locks, metadata, rejected, requests
from waybill.replay.requests.migrations import migrate
from waybill.replay.requests.queue import Queue
from waybill.replay.requests.states import RequestEvent, RequestState
from waybill.replay.requests.stored import Progress, RejectedMessage

T = TypeVar("T")


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with catalog_servers.postgres() as address:
        yield address


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def migrated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    if request.param == "sqlite":
        connection = helpers.sqlite_connection(tmp_path_factory.mktemp("database") / "replay.db")
    else:
        connection = helpers.postgres_connection(request.getfixturevalue("postgres"))
    with helpers.open_database(connection) as database:
        migrate(database)
        yield database


@pytest.fixture
def database(migrated: Database) -> Database:
    """A database with the tables, which have no rows but the lock's."""

    def empty(connection: SqlConnection) -> None:
        for table in metadata.sorted_tables:
            if table.name not in (locks.name, "replay_version"):
                connection.execute(delete(table))

    migrated.write(empty)
    return migrated


@pytest.fixture
def queue(database: Database) -> Queue:
    return helpers.queue_of(database)


@pytest.fixture
def claims(database: Database) -> Claims:
    return helpers.claims_of(database)


def create(queue: Queue, requester: str = "ada", now: int = NOW, **options: Any) -> str:
    return queue.create(wanted(**options), requester, now)[0].request.id


def claimed(claims: Claims, worker: str = "w1", now: int = NOW) -> Claim:
    claim = claims.claim(worker, now)
    assert claim is not None
    return claim


# --- requesters -------------------------------------------------------------------------------------------------------


def test_a_request_is_shown_as_it_was_created(queue: Queue) -> None:
    stored, is_new = queue.create(wanted(b"\xff\0"), "ada", NOW)
    assert is_new
    assert queue.show(stored.request.id.lower()) == stored
    assert (stored.state, stored.claim, stored.progress, stored.rejected) == (RequestState.OPEN, 0, Progress(), 0)
    assert stored.request.requested == wanted(b"\xff\0")
    assert stored.document(NOW)["request"]["keys"] == [{"base64": "/wA="}]


def test_an_unknown_id_is_refused(queue: Queue) -> None:
    for call in (queue.show, queue.rejected_of, lambda unknown: queue.cancel(unknown, "ada", "", NOW)):
        with pytest.raises(ReplayRefused, match=r"there is no replay request 0{26}"):
            call("0" * 26)


def test_pages_hold_every_request_once_and_the_newest_first(queue: Queue) -> None:
    ids = [create(queue, "ada" if number % 2 else "bob", NOW + number) for number in range(7)]
    found: list[str] = []
    while page := queue.page(before_id=found[-1] if found else None, limit=3):
        found += [stored.request.id for stored in page]
    assert found == ids[::-1]
    assert [stored.request.id for stored in queue.page(requester="bob")] == ids[::2][::-1]
    assert queue.page(state=RequestState.FAILED) == []
    for limit in (0, 1_001):
        with pytest.raises(ReplayRefused, match="limit"):
            queue.page(limit=limit)


def test_the_same_idempotency_key_gives_the_same_request_also_after_its_end(queue: Queue) -> None:
    first, _ = queue.create(wanted(), "ada", NOW, idempotency_key="k")
    queue.cancel(first.request.id, "ada", "", NOW)
    again, is_new = queue.create(wanted(), "ada", NOW + 1, idempotency_key="k")
    assert (again.request.id, again.state, is_new) == (first.request.id, RequestState.CANCELLED, False)
    assert queue.create(wanted(), "bob", NOW, idempotency_key="k")[1]
    with pytest.raises(ReplayRefused, match=f"'k' is the key of {first.request.id}, which is another request"):
        queue.create(wanted(b"other"), "ada", NOW, idempotency_key="k")
    for key in ("", "x" * 201, "a\nb", "ü"):
        with pytest.raises(ReplayRefused, match="idempotency_key: must have 1 to 200"):
            queue.create(wanted(), "ada", NOW, idempotency_key=key)


def test_quotas_are_exact_and_name_what_to_wait_for(database: Database) -> None:
    queue = helpers.queue_of(database, ReplayQuotas(open_requests=4, open_requests_per_requester=2, requests_per_day=3))
    first = create(queue, "ada", NOW)
    create(queue, "ada", NOW + 1)
    with pytest.raises(ReplayQuotaReached, match="ada has 2 open requests"):
        create(queue, "ada", NOW + 2)
    queue.cancel(first, "ada", "", NOW + 2)
    third = create(queue, "ada", NOW + 3)
    queue.cancel(third, "ada", "", NOW + 4)
    hour, day = 3_600_000, 86_400_000
    with pytest.raises(ReplayQuotaReached, match=r"created 3 requests within 24 hours.*wait 1 h") as refused:
        create(queue, "ada", NOW + day - hour)
    assert (refused.value.wait_seconds, refused.value.retriable) == (3600, True)
    create(queue, "ada", NOW + day)
    create(queue, "bob", NOW + day)
    create(queue, "bob", NOW + day)
    with pytest.raises(ReplayQuotaReached, match="4 requests are open, and the config allows no more"):
        create(queue, "eve", NOW + day)


def test_a_repeated_request_is_returned_though_the_quota_is_reached(database: Database) -> None:
    queue = helpers.queue_of(database, ReplayQuotas(open_requests=1, open_requests_per_requester=1))
    first, _ = queue.create(wanted(), "ada", NOW, idempotency_key="k")
    assert queue.create(wanted(), "ada", NOW, idempotency_key="k") == (first, False)


def test_a_cancelled_request_stays_cancelled_and_an_ended_one_cannot_be_cancelled(queue: Queue, claims: Claims) -> None:
    ids = [create(queue, now=NOW + number) for number in range(2)]
    claims.finish(claimed(claims), NOW, RequestEvent.COMPLETE)
    with pytest.raises(ReplayRefused, match=f"{ids[0]} is completed already"):
        queue.cancel(ids[0], "ada", "", NOW)
    for _ in range(2):
        stored = queue.cancel(ids[1], "ada", "a mistake", NOW)
        assert (stored.state, stored.reason) == (RequestState.CANCELLED, "cancelled by ada: a mistake")
    assert claims.claim("w1", NOW + 10 * TIMEOUT_MS) is None


# --- claims -----------------------------------------------------------------------------------------------------------


def test_a_request_is_served_to_its_end(queue: Queue, claims: Claims) -> None:
    request_id = create(queue)
    claim = claimed(claims)
    assert (claim.request.id, claim.number, claim.progress) == (request_id, 1, Progress())
    assert queue.show(request_id).state is RequestState.STARTED
    claims.heartbeat(claim, NOW + 1)
    claims.record_progress(claim, NOW + 100_000, Progress({"flights/0": 17}, found=5, delivered=4, share=0.25))
    stored = queue.show(request_id)
    assert (stored.state, stored.heartbeat_ms, stored.progress.cursor) == (
        RequestState.ONGOING,
        NOW + 100_000,
        {"flights/0": 17},
    )
    assert stored.remaining_seconds(NOW + 100_000) == 300
    claims.finish(claim, NOW + 200_000, RequestEvent.COMPLETE)
    stored = queue.show(request_id)
    assert (stored.state, stored.progress.share, stored.finished_at_ms) == (RequestState.COMPLETED, 1.0, NOW + 200_000)
    assert claims.claim("w1", NOW + 10 * TIMEOUT_MS) is None


def test_a_failed_request_has_its_reason(queue: Queue, claims: Claims) -> None:
    request_id = create(queue)
    claims.finish(claimed(claims), NOW, RequestEvent.FAIL, "the target does not exist")
    assert (queue.show(request_id).state, queue.show(request_id).reason) == (
        RequestState.FAILED,
        "the target does not exist",
    )


def test_a_request_that_is_given_back_continues_at_its_cursor_after_the_pause(queue: Queue, claims: Claims) -> None:
    create(queue)
    claim = claimed(claims)
    claims.record_progress(claim, NOW, Progress({"next": 9}, found=3, delivered=2, share=0.5))
    claims.release(claim, NOW, not_before_ms=NOW + 5_000)
    assert claims.claim("w2", NOW + 4_999) is None
    again = claimed(claims, "w2", NOW + 5_000)
    assert (again.number, again.progress) == (2, Progress({"next": 9}, found=3, delivered=2, share=0.5))


def writes(claims: Claims, claim: Claim, now: int) -> list[Callable[[], None]]:
    """Every write of a worker."""
    return [
        lambda: claims.heartbeat(claim, now),
        lambda: claims.record_progress(claim, now, Progress({"next": 666}, 666, 666, 0.666)),
        lambda: claims.reject(claim, now, [RejectedMessage("flights", 6, 66, "666")]),
        lambda: claims.release(claim, now),
        lambda: claims.finish(claim, now, RequestEvent.COMPLETE),
        lambda: claims.finish(claim, now, RequestEvent.FAIL, "666"),
    ]


def test_a_claim_without_heartbeat_goes_to_another_worker_and_every_write_of_the_loser_is_refused(
    queue: Queue, claims: Claims
) -> None:
    request_id = create(queue)
    loser = claimed(claims, "w1", NOW)
    claims.record_progress(loser, NOW, Progress({"next": 1}))
    assert claims.claim("w2", NOW + TIMEOUT_MS - 1) is None
    winner = claimed(claims, "w2", NOW + TIMEOUT_MS)
    assert (winner.request.id, winner.number, winner.progress.cursor) == (request_id, 2, {"next": 1})
    before = queue.show(request_id)
    for write in writes(claims, loser, NOW + TIMEOUT_MS):
        with pytest.raises(ReplayClaimLost, match="claim 1 of worker w1 is lost to claim 2 of w2"):
            write()
    assert queue.show(request_id) == before
    assert queue.rejected_of(request_id) == []
    claims.finish(winner, NOW + TIMEOUT_MS, RequestEvent.COMPLETE)


def test_a_late_worker_whose_request_nobody_claimed_goes_on(queue: Queue, claims: Claims) -> None:
    create(queue)
    claim = claimed(claims)
    claims.heartbeat(claim, NOW + 5 * TIMEOUT_MS)
    assert claims.claim("w2", NOW + 6 * TIMEOUT_MS - 1) is None


def test_every_write_after_the_end_a_release_or_a_cancellation_is_refused(queue: Queue, claims: Claims) -> None:
    cancelled, released, failed = (create(queue, now=NOW + number) for number in range(3))
    first, second, third = (claimed(claims, f"w{number}") for number in range(3))
    assert [claim.request.id for claim in (first, second, third)] == [cancelled, released, failed]
    queue.cancel(cancelled, "ada", "a mistake", NOW)
    claims.release(second, NOW)
    claims.finish(third, NOW, RequestEvent.FAIL, "broken")
    for write in writes(claims, first, NOW):
        with pytest.raises(ReplayClaimLost, match=r"is cancelled .cancelled by ada: a mistake.*worker w0 must stop"):
            write()
    for number, write in enumerate(writes(claims, second, NOW)):
        if number == 3:  # a repeated release
            write()
            continue
        with pytest.raises(ReplayClaimLost, match="worker w1 has given its claim 1 back"):
            write()
    for number, write in enumerate(writes(claims, third, NOW)):
        if number == 5:  # the repeated end
            write()
            continue
        with pytest.raises(ReplayClaimLost, match=r"is failed .broken."):
            write()
    assert queue.show(failed).reason == "broken"


def test_a_higher_priority_is_served_first_and_the_older_request_within_one(queue: Queue, claims: Claims) -> None:
    low, high, second_high = (
        create(queue, now=NOW + number, priority=priority) for number, priority in enumerate((0, 5, 5))
    )
    assert [claimed(claims).request.id for _ in range(3)] == [high, second_high, low]


def test_requesters_are_served_by_turns_however_many_requests_one_has(queue: Queue, claims: Claims) -> None:
    for number in range(4):
        create(queue, "ada", NOW + number)
    create(queue, "bob", NOW + 10)
    create(queue, "eve", NOW + 11)
    order = []
    for number in range(6):
        claim = claimed(claims, now=NOW + 100 + number)
        order.append(claim.request.requester)
        claims.finish(claim, NOW + 100 + number, RequestEvent.COMPLETE)
    assert order == ["ada", "bob", "eve", "ada", "ada", "ada"]


def test_a_requester_with_fewer_claimed_requests_is_served_first(queue: Queue, claims: Claims) -> None:
    for number in range(3):
        create(queue, "ada", NOW + number)
    create(queue, "bob", NOW + 10)
    create(queue, "bob", NOW + 11)
    assert [claimed(claims, now=NOW + number).request.requester for number in range(5)] == [
        *("ada", "bob", "ada", "bob", "ada")
    ]


def test_rejected_messages_are_kept_once_counted_and_listed_by_pages(queue: Queue, claims: Claims) -> None:
    request_id = create(queue)
    claim = claimed(claims)
    messages = [RejectedMessage("flights", number % 3, number, f"400: {number}") for number in range(1_200)]
    claims.record_progress(claim, NOW, Progress({"next": 1}), messages[:700])
    claims.reject(claim, NOW, messages[600:])
    assert queue.show(request_id).rejected == 1_200
    found: list[RejectedMessage] = []
    while page := queue.rejected_of(request_id, after=found[-1] if found else None, limit=500):
        found += page
    assert found == sorted(messages, key=lambda each: (each.topic, each.partition, each.offset))


def test_texts_from_outside_are_stored_without_control_characters(queue: Queue, claims: Claims) -> None:
    text, plain = "\0a\x1b[2J\ud800\r\nb", "�a�[2J���b"
    request_id, other = create(queue), create(queue, now=NOW + 1)
    claim = claimed(claims, text)
    claims.reject(claim, NOW, [RejectedMessage("flights", 0, 0, text), RejectedMessage("flights", 0, 1, "x" * 9_999)])
    claims.finish(claim, NOW, RequestEvent.FAIL, text)
    stored = queue.show(request_id)
    assert (stored.worker, stored.reason) == (plain, plain)
    assert [len(each.reason) for each in queue.rejected_of(request_id)] == [len(plain), 2_000]
    assert queue.cancel(other, "ada", text, NOW).reason == f"cancelled by ada: {plain}"
    with pytest.raises(ReplayRefused, match="requester"):
        queue.page(requester="\0")


def test_a_cursor_that_is_too_large_is_refused(queue: Queue, claims: Claims) -> None:
    create(queue)
    claim = claimed(claims)
    with pytest.raises(ReplayRefused, match=r"cursor: has .* characters"):
        claims.record_progress(claim, NOW, Progress({"seen": "x" * MAX_CURSOR_CHARACTERS}))


def test_an_event_that_does_not_end_a_request_cannot_finish_it(queue: Queue, claims: Claims) -> None:
    create(queue)
    with pytest.raises(ValueError, match="does not end"):
        claims.finish(claimed(claims), NOW, RequestEvent.CANCEL)


def test_a_request_that_cannot_be_read_is_left_out_and_others_are_served(
    database: Database, queue: Queue, claims: Claims, caplog: pytest.LogCaptureFixture
) -> None:
    damaged, newer, sound = (create(queue, now=NOW + number) for number in range(3))
    for request_id, document in ((damaged, "{"), (newer, '{"v": 2}')):
        statement = update(requests).where(requests.c.id == request_id).values(document=document)
        database.write(lambda connection, statement=statement: connection.execute(statement))  # type: ignore[misc]
    assert claimed(claims).request.id == sound
    assert claims.claim("w2", NOW) is None
    assert f"replay request {damaged} is damaged" in caplog.text
    assert f"replay request {newer} was written by a newer Waybill" in caplog.text


# --- lost connections -------------------------------------------------------------------------------------------------


class _Unanswered(Database):
    """A database whose every transaction is committed, and answers only the second time."""

    def __init__(self, endpoint: DatabaseEndpoint) -> None:
        super().__init__(endpoint)
        self.is_broken = False

    def write(self, work: Callable[[SqlConnection], T]) -> T:
        if self.is_broken:
            super().write(work)
        return super().write(work)


def test_each_write_that_was_committed_unanswered_has_the_same_outcome_when_it_is_repeated(database: Database) -> None:
    with _Unanswered(database.endpoint) as repeating:
        queue, claims = helpers.queue_of(repeating), helpers.claims_of(repeating)
        repeating.is_broken = True
        ids = [queue.create(wanted(), "ada", NOW + number)[0].request.id for number in range(2)]
        assert [stored.request.id for stored in queue.page()] == ids[::-1]
        repeating.is_broken = False
        claim, other = claimed(claims), claimed(claims)
        repeating.is_broken = True
        messages = [RejectedMessage("flights", 0, 7, "400")]
        claims.record_progress(claim, NOW, Progress({"next": 8}, 10, 9, 0.5), messages)
        claims.reject(claim, NOW, messages)
        claims.heartbeat(claim, NOW)
        claims.finish(claim, NOW, RequestEvent.COMPLETE)
        claims.release(other, NOW)
        stored = queue.show(ids[0])
        assert (stored.state, stored.rejected, stored.progress.found) == (RequestState.COMPLETED, 1, 10)
        assert queue.cancel(ids[1], "ada", "", NOW).state is RequestState.CANCELLED


def test_a_claim_whose_answer_is_lost_is_served_after_the_timeout(
    database: Database, claims: Claims, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    request_id = create(queue)
    calls = []
    original = claims._claim

    def lost_once(connection: SqlConnection, worker: str, now: int) -> Claim | None:
        found = original(connection, worker, now)
        calls.append(found)
        if len(calls) == 1:
            connection.commit()
            raise OperationalError("", {}, Exception("the connection is lost"))
        return found

    monkeypatch.setattr(claims, "_claim", lost_once)
    assert claims.claim("w1", NOW) is None
    assert claimed(claims, "w1", NOW + TIMEOUT_MS).request.id == request_id


# --- many workers -----------------------------------------------------------------------------------------------------


def _serve(endpoint: DatabaseEndpoint, worker: str, path: Path) -> None:
    """Claim and serve until nothing is left; write each claim's id and number."""
    with Database(endpoint) as database, path.open("w") as served:
        claims = helpers.claims_of(database)
        while claim := claims.claim(worker, NOW):
            claims.record_progress(claim, NOW, Progress({"worker": worker}, 1, 1, 1.0))
            claims.finish(claim, NOW, RequestEvent.COMPLETE)
            served.write(f"{claim.request.id} {claim.number}\n")


def test_many_processes_serve_each_request_once(database: Database, queue: Queue, tmp_path: Path) -> None:
    ids = {create(queue, f"requester-{number % 7}", NOW + number) for number in range(60)}
    arguments = [(database.endpoint, f"w{number}", tmp_path / f"w{number}") for number in range(6)]
    assert helpers.in_processes(_serve, arguments) == [0] * 6
    served = [line for path in tmp_path.iterdir() for line in path.read_text().splitlines()]
    assert sorted(served) == sorted(f"{each} 1" for each in ids)
    assert {stored.state for stored in queue.page()} == {RequestState.COMPLETED}


def _claim_and_die(endpoint: DatabaseEndpoint) -> None:
    with Database(endpoint) as database:
        assert helpers.claims_of(database).claim("dead", NOW) is not None
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_is_killed_after_its_claim_loses_it_to_another(
    database: Database, queue: Queue, claims: Claims
) -> None:
    request_id = create(queue)
    assert helpers.in_processes(_claim_and_die, [(database.endpoint,)]) == [-signal.SIGKILL]
    assert (queue.show(request_id).state, queue.show(request_id).worker) == (RequestState.STARTED, "dead")
    assert claims.claim("w2", NOW + TIMEOUT_MS - 1) is None
    assert claimed(claims, "w2", NOW + TIMEOUT_MS).number == 2


def _die_within_claim(endpoint: DatabaseEndpoint) -> None:
    with Database(endpoint) as database:
        claims = helpers.claims_of(database)

        def work(connection: SqlConnection) -> None:
            assert claims._claim(connection, "dead", NOW) is not None
            os.kill(os.getpid(), signal.SIGKILL)

        database.write(work)


def test_a_worker_that_is_killed_within_its_claim_has_none(database: Database, queue: Queue, claims: Claims) -> None:
    create(queue)
    assert helpers.in_processes(_die_within_claim, [(database.endpoint,)]) == [-signal.SIGKILL]
    assert claimed(claims, "w2", NOW).number == 1


def _create_many(endpoint: DatabaseEndpoint, requester: str, path: Path) -> None:
    outcomes: Counter[str] = Counter()
    with Database(endpoint) as database:
        queue = helpers.queue_of(
            database, ReplayQuotas(open_requests=100, open_requests_per_requester=100, requests_per_day=1_000)
        )
        for _ in range(100):
            try:
                queue.create(wanted(), requester, NOW)
                outcomes["created"] += 1
            except ReplayQuotaReached:
                outcomes["refused"] += 1
    path.write_text(f"{outcomes['created']} {outcomes['refused']}")


def test_quotas_hold_when_many_processes_create_at_once(database: Database, queue: Queue, tmp_path: Path) -> None:
    arguments = [(database.endpoint, f"r{number}", tmp_path / f"r{number}") for number in range(4)]
    assert helpers.in_processes(_create_many, arguments) == [0] * 4
    created, refused = zip(*(map(int, path.read_text().split()) for path in tmp_path.iterdir()), strict=True)
    assert (sum(created), sum(refused)) == (100, 300)
    assert len(queue.page(limit=1_000)) == 100


@pytest.mark.deep
def test_ten_thousand_requests_at_once_are_refused_as_fast_as_one(database: Database) -> None:
    queue = helpers.queue_of(database, ReplayQuotas())
    created = refused = 0
    begin = time.process_time()
    for number in range(10_000):
        try:
            queue.create(wanted(), f"requester-{number % 100}", NOW + number)
            created += 1
        except ReplayQuotaReached:
            refused += 1
    assert (created, refused) == (1_000, 9_000)
    assert (time.process_time() - begin) / 10_000 < 0.02


# --- indexes ----------------------------------------------------------------------------------------------------------


def test_no_query_reads_the_whole_table_of_requests(tmp_path: Path) -> None:
    statements: list[tuple[str, Any]] = []
    with helpers.open_database(helpers.sqlite_connection(tmp_path / "replay.db")) as database:
        migrate(database)
        queue, claims = helpers.queue_of(database, ReplayQuotas()), helpers.claims_of(database)

        @event.listens_for(database.engine, "before_cursor_execute")
        def collect(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_others: Any) -> None:
            statements.append((statement, parameters))

        request_id = queue.create(wanted(), "ada", NOW, idempotency_key="k")[0].request.id
        claim = claimed(claims)
        claims.record_progress(claim, NOW, Progress(), [RejectedMessage("flights", 0, 1, "400")])
        claims.release(claim, NOW)
        queue.page(state=RequestState.OPEN)
        queue.page(requester="ada")
        queue.rejected_of(request_id)
        queue.cancel(request_id, "ada", "", NOW)
        event.remove(database.engine, "before_cursor_execute", collect)
        planned = [each for each in statements if each[0].split()[0] in ("SELECT", "UPDATE")]
        with database.engine.connect() as connection:
            steps = [
                row[3]
                for statement, parameters in planned
                for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
            ]
    assert len(planned) > 15
    assert [step for step in steps if step.startswith("SCAN replay_") and "USING" not in step] == []


# --- MySQL, without a server ------------------------------------------------------------------------------------------


def test_the_lock_of_a_claim_is_written_as_mysql_needs_it(claims: Claims) -> None:
    text = str(claims.locked("0" * 26, NOW).compile(dialect=mysql.dialect()))
    assert text.rstrip().endswith("FOR UPDATE SKIP LOCKED")
    assert "SKIP LOCKED" not in str(claims.candidates(NOW).compile(dialect=mysql.dialect()))


def test_requests_that_ended_long_ago_are_removed_with_their_rejected_messages(database: Database) -> None:
    queue, claims = helpers.queue_of(database), helpers.claims_of(database)
    ended = []
    for number in range(3):
        queue.create(wanted(), "ada", NOW + number)
        claim = claims.claim("worker", NOW + 10)
        assert claim is not None
        claims.reject(claim, NOW + 10, [RejectedMessage("flights", 0, number, "no")])
        claims.finish(claim, NOW + 1_000 * number, RequestEvent.COMPLETE)
        ended.append(claim.request.id)
    still_open, _ = queue.create(wanted(), "ada", NOW)
    assert queue.remove_ended(NOW + 2_000) == 2
    assert queue.remove_ended(NOW + 2_000) == 0
    assert {each.request.id for each in queue.page()} == {ended[2], still_open.request.id}
    assert len(queue.rejected_of(ended[2])) == 1
    remaining = database.read(lambda connection: connection.execute(select(rejected)).all())
    assert len(remaining) == 1
