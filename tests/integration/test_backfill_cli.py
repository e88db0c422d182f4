"""`waybill backfill`, from the dry run to the undo."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from archived_stream import Ran, waybill
from backfill_scenes import FIRST, SECOND, TP0, all_first, check, put, use, with_second
from partition_scenes import Scene

from waybill.tables.backfill.request import list_requests

pytestmark = pytest.mark.integration


@pytest.fixture
def scene(make_scene: Callable[..., Scene]) -> Scene:
    made = make_scene(parser=FIRST)
    put(made, TP0, 0, 20)
    made.run()
    use(made, SECOND)
    return made


@pytest.fixture
def command(scene: Scene, tmp_path: Path) -> Callable[..., Ran]:
    path = tmp_path / "streams.yaml"
    path.write_text(yaml.safe_dump(scene.config.model_dump(mode="json")))

    def run(*arguments: str) -> Ran:
        return waybill("backfill", *arguments, WAYBILL_CONFIG=str(path))

    return run


def test_a_backfill_from_the_dry_run_to_the_undo(scene: Scene, command: Callable[..., Ran]) -> None:
    before = all_first(scene)
    planned = command("plan", "flights", "--offsets", "flights/0@3-9", "--json").document
    assert (planned["messages_at_most"], planned["objects"], planned["tasks"]) == (7, 1, 1)
    assert command("status").err == "there is no backfill\n"
    ran = command(
        "run", "flights", "--offsets", "flights/0@3-9", "--reason", "wrong field", "--by", "anna", "--rate", "1GiB"
    )
    assert ran.code == 0, ran.err
    [backfill] = list_requests(scene.store, "flights")
    assert f"waybill backfill promote flights {backfill.id} --reason" in ran.out
    assert "7 offsets" in command("status").out or " 7 " in command("status").out
    diff = command("diff", "flights", backfill.id)
    assert "column message_id: 5 changed" in diff.out
    assert "s3://" in diff.out
    check(scene, before)
    assert command("promote", "flights", backfill.id, "--reason", "agreed").out == f"flights {backfill.id}: promoted\n"
    check(scene, with_second(before, [(TP0, 3, 10)]))
    assert "promoted already, by" in command("promote", "flights", backfill.id, "--reason", "agreed").out
    done = command("undo", "flights", backfill.id, "--reason", "not quite", "--json").document
    assert (done["state"], done["done_now"]) == ("undone", True)
    check(scene, before)
    assert command("cancel", "flights", backfill.id, "--reason", "no").code == 0
    shown = command("status", "flights", backfill.id).out
    assert "undo by" in shown
    assert "not quite" in shown
    [listed] = command("status", "flights", "--json").document
    assert [event["action"] for event in listed["events"]] == ["promote", "undo", "cancel"]


@pytest.mark.deep
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["plan", "flights"], "nothing is chosen"),
        (["plan", "trains", "--all"], "no stream 'trains'"),
        (["plan", "flights", "--offsets", "flights/0@15-25"], "0–19"),
        (["plan", "flights", "--all", "--source", "kafka"], "is live, and its chains hold"),
        (["plan", "flights", "--all", "--generation", "2"], "it has: 1"),
        (["run", "flights", "--all"], "give --reason"),
        (["run", "flights", "--all", "--reason", " "], "--reason is empty"),
        (["promote", "flights", "20260101_0000", "--reason", "x"], "its backfills: none"),
        (["status", "flights", "x"], "no backfill 'x'"),
    ],
)
def test_what_cannot_be_granted_is_an_error_with_the_valid_values(
    command: Callable[..., Ran], arguments: list[str], error: str
) -> None:
    ran = command(*arguments)
    assert ran.code == 1
    assert error in ran.err


def test_an_unknown_option_is_refused(command: Callable[..., Ran]) -> None:
    assert command("plan", "flights", "--everything").code == 2
