"""`waybill kafka apply`, killed between any two steps: the next run finishes, and leaves no throttle."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from archived_stream import WAYBILL, ArchivedStream
from test_kafka_topics import Declared, throttles

from devstack import Stack
from waybill.base import failpoints

pytestmark = pytest.mark.faults

_FIRST, *_REST = failpoints.TOPICS


@pytest.fixture
def declared(stack: Stack, tmp_path: Path, topic_name: str) -> Iterator[Declared]:
    found = Declared(stack, ArchivedStream(tmp_path, topic_name, partitions=1))
    yield found
    found.admin.delete_topics([found.topic])[found.topic].result(timeout=30)


@pytest.mark.parametrize("place", [_FIRST, *(pytest.param(place, marks=pytest.mark.deep) for place in _REST)])
def test_killed_apply_is_finished_by_the_next_one(declared: Declared, place: str) -> None:
    declared.create([[1], [2]], **{"min.insync.replicas": "2"})
    declared.stream.topic = declared.topic
    declared.stream.produce_events(500)
    declared.declare(partitions=3)
    environment = {
        **os.environ,
        "WAYBILL_CONFIG": str(declared.stream.file),
        failpoints.VARIABLE: f"{place}=kill",
    }
    killed = subprocess.run(
        [WAYBILL, "kafka", "apply", "--yes"], env=environment, capture_output=True, timeout=120, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    ran = declared.apply()
    assert ran.code == 0, ran.err
    assert ran.document["left"] == {"steps": [], "refused": [], "moves_data": False}
    assert declared.plan()["steps"] == []
    assert throttles(declared) == []
