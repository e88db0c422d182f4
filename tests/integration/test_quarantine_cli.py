"""`waybill quarantine …` as a user runs it, and the alert about the quarantine of a partition run."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from archived_stream import Ran, waybill
from partition_scenes import Scene, event, junk
from quarantine_scenes import BROKEN, GOOD, JUNK, MENDED, TP0, check_done, fill_quarantine

from waybill.base.errors import AlertsRaised
from waybill.records.batches.encode import Record
from waybill.tables.partition.alerts import check_alerts

pytestmark = pytest.mark.integration

MakeScene = Callable[..., Scene]
Command = Callable[..., Ran]


@pytest.fixture
def scene(make_scene: MakeScene) -> Scene:
    made = make_scene()
    fill_quarantine(made)
    return made


@pytest.fixture
def command(scene: Scene, tmp_path: Path) -> Command:
    """Run `waybill quarantine …` with the scene's config as it is at the call."""
    file = tmp_path / "streams.yaml"

    def run(*arguments: str) -> Ran:
        file.write_text(yaml.safe_dump(scene.config.model_dump(mode="json")))
        return waybill("quarantine", *arguments, WAYBILL_CONFIG=str(file))

    return run


def test_ls_counts_by_reason_parser_and_topic(command: Command) -> None:
    ran = command("ls", "flights")
    assert ran.code == 0, ran.err
    rows = [line.split()[:6] for line in ran.out.splitlines()]
    assert rows == [
        ["reason", "parser", "topic", "messages", "first", "last"],
        ["event_time_missing", "json", "flights", "72", "0@0", "1@119"],
        ["event_time_missing", "json", "flights-extra", "1", "0@1", "0@1"],
        ["not_json", "json", "flights", "1", "0@51", "0@51"],
        ["not_json", "json", "flights-extra", "1", "0@0", "0@0"],
    ]
    assert "75 messages. To look at some: waybill quarantine show flights" in ran.err
    document = command("ls", "flights", "--reason", "not_json", "--topic-partition", "flights", "--json").document
    assert (document["messages"], document["moved"], len(document["groups"])) == (1, 0, 1)
    assert document["groups"][0]["first"] == {"partition": 0, "offset": 51}


def test_show_prints_messages_as_they_were_sent(command: Command) -> None:
    ran = command("show", "flights", "flights/0@51", "flights/1@100")
    assert ran.code == 0, ran.err
    text, binary = sorted(ran.out.split("\n\n"), key=lambda block: "hexadecimal" in block)
    assert text.startswith("flights/1@100  event_time_missing: ")
    assert "header h: '1'\n  header h: none\n" in text
    assert '{"id": "id-100", "at": 259200000}' in text
    assert "key: none" in text
    assert binary.startswith("flights/0@51  not_json: ")
    assert "refused by json, " in binary
    assert "value (6 B, in hexadecimal):\n    ff 20 6a 75 6e 6b" in binary
    assert command("show", "flights", "flights/1@100", "--raw").out == '{"id": "id-100", "at": 259200000}'
    (line,) = command("show", "flights", "flights/0@51", "--json").out.splitlines()
    assert json.loads(line)["value"] == {"base64": "/yBqdW5r"}


def test_show_stops_at_the_limit_and_reports_it(command: Command) -> None:
    ran = command("show", "flights", "--limit", "3", "--json")
    assert len(ran.out.splitlines()) == 3
    assert "there are more than 3" in ran.err
    assert command("show", "flights", "--reason", "not_json").out.count("not_json") == JUNK
    none = command("show", "flights", "flights/0@52")
    assert (none.code, none.out, none.err) == (0, "", "no such message of flights is in quarantine\n")


@pytest.mark.deep
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "flights", "--raw"), "--raw writes the value of one message, and several messages match"),
        (("show", "flights", "flights/0@52", "--raw"), "--raw writes the value of one message, and no message matches"),
        (("ls", "trains"), "no stream 'trains'"),
        (("retry", "flights", "--from", "5", "--to", "4"), "--from 5 is behind --to 4"),
        (("retry", "flights", "--reason", "not json"), "'not json' is no kind of reason"),
    ],
)
def test_error_names_the_cause(command: Command, arguments: tuple[str, ...], message: str) -> None:
    ran = command(*arguments)
    assert (ran.code, ran.out) == (1, "")
    assert message in ran.err


def test_show_escapes_control_characters(command: Command, scene: Scene) -> None:
    scene.put(TP0, [Record(54, 0, b"\x1b[2J", b'{"at": "\x1b[2J"}', (("\x1b", b"\x1b"),))])
    scene.run()
    ran = command("show", "flights", "flights/0@54")
    assert ran.code == 0, ran.err
    assert "\x1b" not in ran.out
    assert "1b 5b 32 4a" in ran.out


def test_retry_moves_the_messages_that_the_corrected_parser_accepts(command: Command, scene: Scene) -> None:
    dry = command("retry", "flights", "--dry-run")
    assert f"flights: would move {GOOD} messages to the table, {JUNK} stay in quarantine" in dry.out
    chosen = command("retry", "flights", "--topic-partition", "flights/0", "--from", "10", "--to", "19", "--json")
    assert (chosen.document["moved"], chosen.document["stayed"]) == (10, [])
    ran = command("retry", "flights")
    assert f"flights: moved {GOOD - 10} messages to the table, {JUNK} stay in quarantine" in ran.out
    assert f"  not_json: {JUNK} stay, such as flights" in ran.out
    check_done(scene, JUNK)


def test_a_refused_retry_ends_with_1_and_a_person_can_accept_what_failed(command: Command, scene: Scene) -> None:
    share = {"severity": "critical", "max_share": 0, "min_messages": 1}
    scene.config = scene.with_stream(
        parser={**MENDED, "message_id": "number"}, quality={"checks": {"message_id_null_share": share}}
    )
    refused = command("retry", "flights")
    assert (refused.code, refused.out) == (1, "")
    assert f"error: flights: {GOOD} messages in quarantine can be parsed now, and are not moved" in refused.err
    assert 'waybill quarantine retry flights --accept-failed-checks "why"' in refused.err
    check_done(scene, GOOD + JUNK)
    empty = command("retry", "flights", "--accept-failed-checks", " ")
    assert empty.code == 1
    assert "--accept-failed-checks is empty: give the reason" in empty.err
    ran = command("retry", "flights", "--accept-failed-checks", "they have none", "--by", "ann", "--json")
    assert ran.code == 0, ran.err
    assert ran.document["moved"] == GOOD
    assert ran.document["warnings"][0].endswith("(ann accepted it: they have none)")
    check_done(scene, JUNK)


# --- the alert --------------------------------------------------------------------------------------------------------


def test_partition_run_above_the_quarantine_rate_is_committed_and_raises_an_alert(make_scene: MakeScene) -> None:
    scene = make_scene(quarantine={"max_rate": "20%", "min_messages": 10})
    before = datetime.now(UTC) - timedelta(seconds=1)
    scene.put(TP0, [event(n, n) for n in range(8)] + [junk(8), junk(9)])
    report = scene.run()
    assert report.alerts == (), "20% is not more than 20%"
    assert check_alerts(scene.config, "flights", before) == 1
    scene.put(TP0, [event(n, n) for n in range(10, 17)] + [junk(17), junk(18), Record(19, -1, None, None)])
    report = scene.run()
    assert (report.rows, report.quarantined) == (7, 3)
    (alert,) = report.alerts
    assert alert.startswith("flights: 3 of 10 messages (30.0%) went to quarantine, more than 20%")
    assert "not_json: 2, such as flights/0@17; event_time_out_of_range: 1, such as flights/0@19" in alert
    assert "waybill quarantine show flights flights/0@17" in alert
    with pytest.raises(AlertsRaised) as raised:
        check_alerts(scene.config, "flights", before)
    assert str(raised.value) == alert
    assert check_alerts(scene.config, "flights", datetime.now(UTC) + timedelta(seconds=1)) == 0
    check_done(scene, 5)


def test_run_that_commits_the_staged_files_of_a_killed_run_raises_the_alert(make_scene: MakeScene) -> None:
    scene = make_scene(quarantine={"max_rate": "0%", "min_messages": 1})
    scene.put(TP0, [event(0, 0), junk(1)])

    class Killed(BaseException):
        pass

    def die(step: str) -> None:
        if step == "staged":
            raise Killed

    with pytest.raises(Killed):
        scene.run(on_step=die)
    report = scene.run()
    (alert,) = report.alerts
    assert "not_json: 1, such as flights/0@1" in alert
    assert report.reasons["not_json"].messages == 1


@pytest.mark.deep
def test_quarantine_retry_raises_no_alert(scene: Scene, command: Command) -> None:
    now = datetime.now(UTC)
    assert command("retry", "flights").code == 0
    assert check_alerts(scene.config, "flights", now) == 0


def test_few_messages_raise_no_alert(make_scene: MakeScene) -> None:
    scene = make_scene(parser=BROKEN)
    scene.put(TP0, [event(n, n) for n in range(99)])
    assert scene.run().alerts == ()
    scene.put(TP0, [event(n, n) for n in range(99, 199)])
    assert len(scene.run().alerts) >= 1
