"""The stored incidents: no acknowledgement is lost, and no message sent twice, whatever is away and whatever dies."""

from __future__ import annotations

import json
import stat
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from book_places import MOST_NODE_BYTES, Died, MemoryS3, MemoryZooKeeper
from hypothesis import given
from hypothesis import strategies as st

from waybill.base.errors import DocumentDamaged, DocumentTooNew
from waybill.config.models.alerts import Alerts
from waybill.config.models.promises import PromiseSeverity
from waybill.watch.incidents.book_store import BookStore
from waybill.watch.incidents.finding import Finding, Verdict
from waybill.watch.incidents.incident import Acknowledgement, IncidentBook, NotificationKind
from waybill.watch.incidents.interim_books import state_directory
from waybill.watch.incidents.rules import acknowledge, advance, claim, settle

MINUTE = 60_000
NOON = 1_800_000_000_000
CHANNELS = {"mail": {"type": "email", "to": ["a@b.c"]}, "pager": {"type": "webhook", "connection": "pd"}}
ALERTS = Alerts.model_validate({"channels": CHANNELS, "escalate_to": ["pager"], "remind_after": "1h"})
PROMISES = ("archive_lag", "table_lag")
NODE = "/waybill/watch/incidents"


def finding(promise: str = "archive_lag", verdict: Verdict = Verdict.BROKEN, **fields: Any) -> Finding:
    known = {"stream": "flights", "severity": PromiseSeverity.CRITICAL, "figure": "20 min"}
    return Finding(promise=promise, verdict=verdict, **{**known, **fields})


class World:
    """ZooKeeper, S3 and machines on which watches run; `sent` counts the messages that left."""

    def __init__(self, directory: Path, part_bytes: int | None = None) -> None:
        self.zookeeper, self.s3 = MemoryZooKeeper(), MemoryS3()
        self.directory, self.part_bytes = directory, part_bytes
        self.now_ms = NOON
        self.broken: set[str] = set()
        self.sent: Counter[str] = Counter()
        self.order: list[tuple[str, str, NotificationKind]] = []
        self.may_repeat: Counter[str] = Counter()
        self.acknowledged: dict[str, str] = {}

    def books(self, machine: str = "a") -> BookStore:
        places: Any = (self.zookeeper, self.s3)
        return BookStore("waybill", *places, self.directory / machine, part_bytes=self.part_bytes)

    def watch(self, machine: str = "a", dies_at: int | None = None, dies_in: str = "") -> None:
        """Watch once, as `run_watch` does; the process dies at a call of ZooKeeper or S3, before or after it sent."""
        findings = [finding(each, Verdict.BROKEN if each in self.broken else Verdict.KEPT) for each in PROMISES]
        claimed = []

        def follow(book: IncidentBook) -> IncidentBook:
            claimed.clear()
            book, due = claim(advance(book, findings, ALERTS, self.now_ms), self.now_ms, ALERTS.channels)
            claimed.extend(due)
            return book

        try:
            self._die(dies_at if dies_in == "follow" else None)
            self.books(machine).change(follow)
        except Died:
            return
        finally:
            self._die(None)
        for each in claimed:
            self.sent[each.id] += 1
            self.order.append((each.incident, each.channel, each.kind))
        if not claimed:
            return
        try:
            self._die(dies_at if dies_in == "settle" else None)
            self.books(machine).change(lambda book: settle(book, {each.id: None for each in claimed}, self.now_ms))
        except Died:
            self.may_repeat.update(each.id for each in claimed)
        finally:
            self._die(None)

    def _die(self, calls: int | None) -> None:
        self.zookeeper.calls_until_death = self.s3.calls_until_death = calls

    def acknowledge(self, machine: str = "a") -> None:
        books = self.books(machine)
        for incident in books.load().incidents:
            if incident.is_open and incident.acknowledged is None:
                by = f"person {len(self.acknowledged)}"
                acknowledgement = Acknowledgement(by, self.now_ms, "on it")
                change = partial(acknowledge, incident_id=incident.id, acknowledgement=acknowledgement)
                books.change(change)
                self.acknowledged[incident.id] = by
                return

    def come_to_rest(self, machine: str = "a") -> IncidentBook:
        """All services are back, all promises are kept, and the watch goes on: return the last book."""
        self.zookeeper.is_away = self.s3.is_away = False
        self.zookeeper.loses_answers = self.s3.loses_answers = False
        self.broken.clear()
        for _ in range(12):
            self.now_ms += 4 * MINUTE
            self.watch(machine)
        return self.books(machine).load()

    def check(self, book: IncidentBook) -> None:
        assert book.outbox == ()
        assert not any(incident.is_open for incident in book.incidents)
        for name, times in self.sent.items():
            assert times <= 1 + self.may_repeat[name], f"{name} was sent {times} times"
        stored = {incident.id: incident.acknowledged for incident in book.incidents}
        for incident, by in self.acknowledged.items():
            found = stored[incident]
            assert found is not None
            assert found.by == by
        for incident in book.incidents:
            kinds = {(channel, kind) for name, channel, kind in self.order if name == incident.id}
            for channel in incident.channels:
                assert (channel, NotificationKind.RESOLVED) in kinds
        opened = [(incident.promise, incident.opened_ms) for incident in book.incidents]
        assert len(opened) == len(set(opened))


_STEPS = st.one_of(
    st.tuples(st.just("watch"), st.none() | st.tuples(st.integers(0, 12), st.sampled_from(["follow", "settle"]))),
    st.tuples(st.just("acknowledge"), st.none()),
    st.tuples(st.sampled_from(["zookeeper", "s3", "lost answers of zookeeper", "lost answers of s3"]), st.none()),
    st.tuples(st.sampled_from(PROMISES), st.none()),
)
_HISTORIES = st.lists(st.tuples(_STEPS, st.integers(1, 50), st.sampled_from("ab")), max_size=40)


def play(world: World, history: list[Any], machines: dict[str, str], fixed: tuple[str, ...] = ()) -> None:
    for (step, argument), minutes, machine in history:
        world.now_ms += minutes * MINUTE
        match step:
            case "watch":
                calls, phase = argument or (None, "")
                world.watch(machines[machine], calls, phase)
            case "acknowledge":
                world.acknowledge(machines[machine])
            case "zookeeper" | "s3" if step not in fixed:
                place = getattr(world, step)
                place.is_away = not place.is_away
            case "lost answers of zookeeper" | "lost answers of s3" if step not in fixed:
                place = getattr(world, step.rpartition(" ")[2])
                place.loses_answers = not place.loses_answers
            case _:
                world.broken ^= {step} & set(PROMISES)


@given(_HISTORIES, st.sampled_from([None, 700]))
def test_watches_of_one_machine_tell_once_and_keep_what_people_decide_while_services_come_and_go(
    history: list[Any], part_bytes: int | None
) -> None:
    with TemporaryDirectory() as directory:
        world = World(Path(directory), part_bytes)
        play(world, history, {"a": "a", "b": "a"})
        world.check(world.come_to_rest())


@given(_HISTORIES, st.sampled_from([None, 700]))
def test_watches_of_two_machines_tell_once_while_s3_answers_both(history: list[Any], part_bytes: int | None) -> None:
    with TemporaryDirectory() as directory:
        world = World(Path(directory), part_bytes)
        play(world, history, {"a": "a", "b": "b"}, ("s3", "lost answers of s3"))
        world.check(world.come_to_rest())


def test_acknowledgement_and_incident_from_while_zookeeper_was_away_are_there_when_it_is_back(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.broken = {"archive_lag"}
    world.watch()
    world.zookeeper.is_away = True
    world.acknowledge()
    world.broken = set(PROMISES)
    world.watch()
    assert world.sent.total() == 2
    world.zookeeper.is_away = False
    for machine in ("a", "b"):
        incidents = {each.promise: each for each in world.books(machine).load().incidents}
        assert incidents["archive_lag"].acknowledged is not None
        assert incidents["table_lag"].is_open
    world.now_ms += MINUTE
    world.watch("b")
    assert world.sent.total() == 2
    assert {each.promise for each in world.books().load().incidents} == set(PROMISES)
    assert not [key for key in world.s3.objects if "interim" in key], "they are in ZooKeeper now"


def test_acknowledgement_of_one_machine_survives_a_change_of_another_that_still_reached_zookeeper(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    world.broken = {"archive_lag"}
    world.watch("a")
    world.zookeeper.is_away = True
    world.acknowledge("b")
    world.zookeeper.is_away = False
    [interim] = [key for key in world.s3.objects if "interim" in key]
    held = world.s3.objects.pop(interim)  # the other machine's watch does not see it yet, and writes both places
    world.broken = set(PROMISES)
    world.now_ms += MINUTE
    world.watch("a")
    world.s3.objects[interim] = held
    world.now_ms += MINUTE
    world.watch("a")
    incidents = {each.promise: each for each in world.books("a").load().incidents}
    assert incidents["archive_lag"].acknowledged is not None
    assert incidents["table_lag"].is_open
    assert set(world.sent.values()) == {1}


def test_book_of_any_size_is_stored_and_its_messages_are_claimed_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    found = [finding(stream=f"stream_{number}", detail=f"{number:x}" * 200) for number in range(3000)]
    books = world.books()
    for minute in range(3):
        claimed = []

        def follow(book: IncidentBook, at_ms: int = NOON + minute * 1000, due: list[Any] = claimed) -> IncidentBook:
            due.clear()
            book, found_due = claim(advance(book, found, ALERTS, at_ms), at_ms, ALERTS.channels)
            due.extend(found_due)
            return book

        book = books.change(follow)
        assert len(claimed) == (3000 if minute == 0 else 0)
    assert len(json.dumps(book.document())) > 2 * MOST_NODE_BYTES
    assert world.books("b").load() == book
    parts = [path for path in world.zookeeper.nodes if "incident-parts" in path]
    listed = json.loads(world.zookeeper.nodes[NODE][0])
    assert listed["v"] == 2
    assert sorted(path.rpartition("/")[2] for path in parts) == sorted(listed["parts"]), "no part is left over"
    books.change(lambda _: IncidentBook())
    assert [path for path in world.zookeeper.nodes if "incident-parts" in path] == []


def test_reader_that_finds_parts_removed_reads_the_next_book(tmp_path: Path) -> None:
    world = World(tmp_path, part_bytes=100)
    world.broken = {"archive_lag"}
    world.watch()
    books = world.books("b")
    read, replaced = world.zookeeper.get_all, []

    def get_all(paths: Any) -> dict[str, tuple[bytes, int]]:
        if not replaced:
            replaced.append(True)
            world.now_ms += 90 * MINUTE
            world.watch("a")
        return read(paths)

    world.zookeeper.get_all = get_all  # type: ignore[method-assign]
    assert books.load().incidents[0].escalated


def test_book_of_an_earlier_waybill_is_read_and_its_copy_in_s3_where_it_is_newer(tmp_path: Path) -> None:
    world = World(tmp_path)
    book = advance(IncidentBook(), [finding(subject="münchen")], ALERTS, NOON)
    [incident] = book.incidents
    old = replace(book, incidents=(replace(incident, id="flights-archive_lag-münchen-20260301T120000Z"),))
    fields = old.document()
    for each in fields["outbox"]:
        del each["made_ms"]
    content = json.dumps({"v": 1, "number": 7, **fields}).encode()
    world.zookeeper.nodes[NODE] = (content, 3)
    assert world.books().load().incidents == old.incidents
    later = advance(old, [finding(subject="münchen"), finding("table_lag")], ALERTS, NOON + MINUTE)
    world.s3.objects["p/watch/incidents.json"] = json.dumps({"v": 1, "number": 8, **later.document()}).encode()
    assert [each.promise for each in world.books().load().incidents] == ["archive_lag", "table_lag"]
    same = advance(old, [finding(subject="münchen", figure="25 min")], ALERTS, NOON + MINUTE)
    assert [each.id for each in same.incidents] == [old.incidents[0].id], "no second incident after the upgrade"


def test_damaged_copies_are_left_alone_and_a_damaged_or_newer_node_is_named(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.broken = {"archive_lag"}
    world.watch()
    before = world.books().load()
    interim = "p/watch/incidents-interim/000000000009.json.gz"
    for content in (b"", b"x", b"\x1f\x8b\x00", b'{"v": 1}'):
        world.s3.objects["p/watch/incidents.json"] = content
        world.s3.objects[interim] = content
        assert world.books().load() == before
    world.now_ms += 90 * MINUTE
    world.watch()
    assert world.s3.objects[interim] == b'{"v": 1}'
    _, version = world.zookeeper.nodes[NODE]
    world.zookeeper.nodes[NODE] = (b"x", version)
    with pytest.raises(DocumentDamaged, match="ZooKeeper node /waybill/watch/incidents"):
        world.books().load()
    world.zookeeper.nodes[NODE] = (b'{"v": 3, "number": 1}', version)
    with pytest.raises(DocumentTooNew):
        world.books().load()


def test_books_of_a_machine_are_in_a_directory_of_its_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state_directory("a/b") != state_directory("a-b"), "two roots have two directories"
    directory = state_directory("waybill")
    assert directory.is_relative_to(tmp_path)
    world = World(tmp_path)
    world.zookeeper.is_away = world.s3.is_away = True
    books = BookStore("waybill", None, None)
    book = books.change(lambda book: advance(book, [finding()], ALERTS, NOON))
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    [file] = list(directory.iterdir())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert BookStore("waybill", None, None).load() == book


@pytest.mark.parametrize("kind", ["readable by others", "a link"])
def test_directory_that_another_user_may_have_made_is_not_used(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path)
    directory = state_directory("waybill", tmp_path / "a")
    directory.parent.mkdir(parents=True)
    if kind == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        directory.symlink_to(tmp_path / "elsewhere")
    else:
        directory.mkdir(mode=0o700)
        directory.chmod(0o755)
    world.broken = {"archive_lag"}
    world.watch()
    assert list(directory.iterdir()) == []
    assert "is not a directory that only user" in caplog.text
    assert len(world.books().load().incidents) == 1, "ZooKeeper has them"
