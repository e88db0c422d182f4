"""One Spark application for many streams: broken streams beside healthy ones, retries, the results for Airflow."""

from __future__ import annotations

from pathlib import Path

import pytest
from group_scenes import PARSERS_FILE, new_group_scene

from devstack import Stack
from waybill.tables.spark.group_results import StreamOutcome

pytestmark = pytest.mark.integration


def python_parser(name: str) -> dict[str, object]:
    return {"parser": {"name": "python", "class": f"parsers_of_groups:{name}"}}


@pytest.mark.deep  # a Spark application for 21 streams
def test_a_broken_stream_fails_only_its_own_part(stack: Stack, tmp_path: Path) -> None:
    quarantine = {"quarantine": {"max_rate": "10%", "min_messages": 10}}
    own = {"partition": {"group": "own"}}
    broken = {"raises": python_parser("Raises"), "dies": python_parser("Dies"), "lost": {}, "alerts": quarantine}
    healthy: list[str] = [f"healthy{n}" for n in range(4)]
    with new_group_scene(tmp_path, **{name: {} for name in healthy}, **broken, idle={}, elsewhere=own) as scene:
        for number, name in enumerate([*healthy, "raises", "dies", "lost", "elsewhere"]):
            scene.put(name, range(100 + number))
        scene.put("alerts", range(50), broken=True)
        assert scene.submit("partition", "--stream", "lost").returncode == 0
        location = scene.table("lost").metadata_location.removeprefix(f"s3://{scene.store.bucket}/")
        scene.store.remove(location)

        done = scene.submit("partition", "--run", "r1")
        assert done.returncode == 1, done.stderr  # another try may help: a worker died
        results = scene.results("partition", "r1")
        assert results.ended
        assert {name: result.status for name, result in results.streams.items()} == {
            **dict.fromkeys(healthy, StreamOutcome.DONE),
            **dict.fromkeys(("raises", "dies", "lost"), StreamOutcome.FAILED),
            "alerts": StreamOutcome.DONE,
            "idle": StreamOutcome.NOTHING_NEW,
        }
        assert [scene.rows(name) for name in healthy] == [100, 101, 102, 103]
        assert all(results.streams[name].rows == scene.rows(name) for name in healthy)
        assert {name for name, result in results.streams.items() if result.committed} == {*healthy, "alerts"}
        raises, dies, lost = (results.streams[name] for name in ("raises", "dies", "lost"))
        assert (raises.error, raises.retriable) == ("ParserBroken", False)
        assert "parsers_of_groups:Raises" in str(raises.message)
        assert dies.retriable
        assert lost.error is not None
        alert, *_ = results.streams["alerts"].alerts  # and the audit's warnings
        assert "alerts: 50 of 50 messages (100.0%) went to quarantine" in alert
        for name in healthy:
            assert f"[{name}] partitioned {name}" in done.stdout

        # A retry, after the parser of one stream was corrected: `raises` is not retriable, so it is left out.
        (tmp_path / PARSERS_FILE).write_text("from waybill.parsers.examples import KeyTime as Raises, KeyTime as Dies")
        scene.put("healthy0", range(100, 150))
        done = scene.submit("partition", "--run", "r1", "--resume")
        results = scene.results("partition", "r1")
        assert results.streams["dies"].status is StreamOutcome.DONE
        assert results.streams["raises"].status is StreamOutcome.FAILED
        assert scene.rows("healthy0") == 100, "what an earlier try has done is not done again"

        done = scene.submit("dedup", "--run", "r1")
        results = scene.results("dedup", "r1")
        assert results.ended
        assert {name for name, each in results.streams.items() if each.status is StreamOutcome.DONE} >= set(healthy)
        assert [scene.rows(name, unique=True) for name in healthy] == [100, 101, 102, 103]
        assert results.streams["lost"].status is StreamOutcome.FAILED
        assert results.streams["idle"].status is StreamOutcome.NOTHING_NEW


@pytest.mark.deep
def test_a_killed_application_leaves_the_results_of_the_streams_that_had_ended(stack: Stack, tmp_path: Path) -> None:
    names = ["a", "b", "c"]
    with new_group_scene(tmp_path, **{name: {} for name in names}) as scene:
        for name in names:
            scene.put(name, range(10))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("WAYBILL_FAILPOINTS", "partition.committed=kill")
            assert scene.submit("partition", "--run", "r1", "--parallel", "1").returncode != 0
        results = scene.results("partition", "r1")
        assert (results.ended, results.streams) == (False, {})
        assert scene.submit("partition", "--run", "r1", "--resume").returncode == 0
        results = scene.results("partition", "r1")
        assert results.ended
        assert all(results.streams[name].committed for name in names), "one was committed by the killed try"
        assert [scene.rows(name) for name in names] == [10, 10, 10]


@pytest.mark.deep
def test_the_tables_of_several_streams_are_maintained_side_by_side(stack: Stack, tmp_path: Path) -> None:
    names = ["a", "b", "c"]
    small = {"maintenance": {"min_input_files": 2}}
    with new_group_scene(tmp_path, **dict.fromkeys(names, small), idle=small) as scene:
        for first in (0, 10):
            for name in names:
                scene.put(name, range(first, first + 10))
            assert scene.submit("partition", "--run", f"r{first}").returncode == 0
        files = [len(scene.table(name).inspect.files()) for name in names]
        assert files == [2, 2, 2]
        done = scene.submit("maintenance", "--run", "r1")
        assert done.returncode == 0, done.stdout
        results = scene.results("maintenance", "r1")
        assert {name: str(result.status) for name, result in results.streams.items()} == {
            **dict.fromkeys(names, "done"),
            "idle": "nothing_new",
        }
        assert [len(scene.table(name).inspect.files()) for name in names] == [1, 1, 1]
        assert [scene.rows(name) for name in names] == [20, 20, 20]
