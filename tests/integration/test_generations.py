"""Two generations of one stream in one table: consumers read the live one, and a promotion changes which that is."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from maintenance_scenes import MaintenanceRunner
from partition_scenes import Scene, event, in_this_process, junk
from test_partition import Killed, die_at

from waybill.base.errors import ConfigError, DecisionRefused, PublicationHeld
from waybill.config.names import TopicPartition
from waybill.tables.audit import DecisionKind
from waybill.tables.iceberg.generations import generations_of, live_generation
from waybill.tables.partition.generations import list_generations, promote_generation
from waybill.tables.partition.holds import decide_hold
from waybill.tables.partition.partition_run import run_partition

pytestmark = pytest.mark.integration

TP = TopicPartition("flights", 0)
MakeScene = Callable[..., Scene]


@pytest.fixture
def scene(make_scene: MakeScene) -> Scene:
    """Generation 1 has ten rows; the config is that of generation 2, which has twelve, and one message is junk."""
    made = make_scene()
    made.put(TP, [event(n, n) for n in range(10)])
    made.run()
    made.config = made.with_stream(generation=2)
    made.put(TP, [*(event(n, n) for n in range(12)), junk(12)])
    made.run()
    return made


def promote(scene: Scene, generation: int, on_step: Callable[[str], None] = lambda _: None) -> bool:
    return promote_generation(scene.config, "flights", generation, by="ann", reason="better parser", on_step=on_step)


def visible(scene: Scene) -> list[tuple[int, int]]:
    """Return generation and offset of what readers of the table see."""
    rows = scene.table.scan(selected_fields=("generation", "offset")).to_arrow().to_pylist()
    return sorted((row["generation"], row["offset"]) for row in rows)


def quarantined(scene: Scene) -> list[int]:
    return scene.quarantine.scan(selected_fields=("offset",)).to_arrow()["offset"].to_pylist()


def rows_of(generation: int, number: int) -> list[tuple[int, int]]:
    return [(generation, offset) for offset in range(number)]


def test_a_generation_is_built_beside_the_live_one(scene: Scene) -> None:
    assert visible(scene) == rows_of(1, 10)
    assert quarantined(scene) == []
    found = list_generations(scene.catalog, scene.config, "flights")
    assert [(each.number, each.is_live, each.rows) for each in found] == [(1, True, 10), (2, False, 12)]


def test_a_promotion_shows_the_other_generation_and_promoting_the_first_again_undoes_it(scene: Scene) -> None:
    assert promote(scene, 2)
    assert visible(scene) == rows_of(2, 12)
    assert quarantined(scene) == [12]
    assert generations_of(scene.table) == {1: "generation_1", 2: "main"}
    assert promote(scene, 1)
    assert visible(scene) == rows_of(1, 10)
    assert quarantined(scene) == []


@pytest.mark.deep
def test_both_generations_advance_before_and_after_a_promotion(scene: Scene) -> None:
    second, first = scene.config, scene.with_stream(generation=1)
    for number in (1, 2):
        for config in (first, second):
            scene.config = config
            scene.put(TP, [event(12 + number if config is second else 9 + number, 0)])
            assert scene.run().rows == 1
        promote(scene, 2)
    assert visible(scene) == sorted([*rows_of(2, 12), (2, 13), (2, 14)])
    promote(scene, 1)
    assert visible(scene) == rows_of(1, 12), "with what its runs have published since"


def test_a_promotion_of_what_is_live_changes_nothing(scene: Scene) -> None:
    before = scene.table.metadata_location
    assert not promote(scene, 1)
    assert scene.table.metadata_location == before


def test_an_unknown_generation_is_refused_with_the_known_ones(scene: Scene) -> None:
    with pytest.raises(DecisionRefused, match="does not hold generation 3; it holds: 1, 2"):
        promote(scene, 3)


@pytest.mark.parametrize("step", ["decided", "quarantine_promoted", "promoted"])
def test_a_killed_promotion_is_finished_by_the_same_command(scene: Scene, step: str) -> None:
    with pytest.raises(Killed):
        promote(scene, 2, die_at(step))
    assert visible(scene) == (rows_of(2, 12) if step == "promoted" else rows_of(1, 10))
    promote(scene, 2)
    assert visible(scene) == rows_of(2, 12)
    assert quarantined(scene) == [12]
    assert live_generation(scene.table) == live_generation(scene.quarantine) == 2


@pytest.mark.parametrize("step", ["decided", "quarantine_promoted"])
def test_a_promotion_that_was_frozen_does_not_come_back_after_an_undo(scene: Scene, step: str) -> None:
    def others_decide(reached: str) -> None:
        if reached == step:
            assert promote(scene, 2)
            assert promote(scene, 1)

    with pytest.raises(DecisionRefused, match="another change of the live generation was decided since"):
        promote(scene, 2, others_decide)
    assert visible(scene) == rows_of(1, 10)
    assert quarantined(scene) == []


def test_the_decision_is_stored(scene: Scene) -> None:
    promote(scene, 2)
    (key,) = scene.keys("generations/flights/")
    stored = json.loads(scene.store.read(key))
    assert (stored["from"], stored["to"], stored["by"], stored["reason"]) == (1, 2, "ann", "better parser")


def test_a_new_generation_may_have_another_partitioning(scene: Scene) -> None:
    scene.config = scene.with_stream(generation=3, partition_by="hour")
    scene.put(TP, [event(n, n) for n in range(5)])
    scene.run()
    assert visible(scene) == rows_of(1, 10), "files of the other partitioning stay"
    promote(scene, 3)
    assert visible(scene) == rows_of(3, 5)
    assert [str(field.transform) for field in scene.table.spec().fields] == ["hour"]
    scene.config = scene.with_stream(partition_by=["day", "bucket(4, key)"])
    with pytest.raises(ConfigError, match="is partitioned by"):
        scene.run()
    promote(scene, 1)
    scene.config = scene.with_stream(generation=1, partition_by="day")
    scene.put(TP, [event(10, 10)])
    scene.run()
    assert visible(scene) == rows_of(1, 11), "the live generation has its earlier partitioning again"


@pytest.mark.deep
def test_maintenance_of_the_live_generation_keeps_the_held_run_of_another_stream(
    make_scene: MakeScene, maintenance: MaintenanceRunner
) -> None:
    made = make_scene(quarantine={"min_messages": 1}, maintenance={"keep_last": 1})
    made.put(TP, [event(n, n) for n in range(10)])
    made.run()
    later = made.with_stream(generation=2, quality={"checks": {"quarantine_share": "critical"}})
    replace(made, config=later).put(TP, [junk(n) for n in range(3)])
    streams = {**made.config.streams, "flights_v2": later.stream("flights")}
    made.config = made.config.model_copy(update={"streams": streams})
    with pytest.raises(PublicationHeld):
        run_partition(made.config, "flights_v2", in_this_process)
    for days in (30, 60):  # a branch that is dropped keeps its files until its snapshots have expired
        maintenance.later = timedelta(days=days)
        maintenance.run_config(made.config)
    decide_hold(made.config, "flights_v2", DecisionKind.RELEASED, by="ann", reason="they are tests")
    found = {each.number: each.rows for each in list_generations(made.catalog, made.config, "flights_v2")}
    assert found == {1: 10, 2: 0}
    made.quarantine.refresh()
    rows = made.quarantine.scan(snapshot_id=made.quarantine.metadata.refs["generation_2"].snapshot_id).to_arrow()
    assert rows["offset"].to_pylist() == [0, 1, 2], "the files of the held run are still there"
