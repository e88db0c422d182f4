"""`waybill kafka republish`, killed between any two steps: the next run publishes the rest, and nothing twice."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from archived_stream import WAYBILL, ArchivedStream
from test_kafka_losses import consume_all
from test_unclean_election import move_ahead, run

from waybill import failpoints

pytestmark = pytest.mark.faults

LOST = 2_500
"""More than two deliveries."""


@pytest.mark.parametrize(
    ("place", "passes"),
    [
        ("republish.recorded", 1),
        pytest.param("republish.delivered", 1, marks=pytest.mark.deep),
        pytest.param("republish.delivered", 3, marks=pytest.mark.deep),
    ],
)
def test_killed_republish_is_finished_by_the_next_one(tmp_path: Path, topic_name: str, place: str, passes: int) -> None:
    assert place in failpoints.REPUBLISH
    stream = ArchivedStream(tmp_path, topic_name, partitions=1)
    stream.produce_events(10)
    run(stream)
    move_ahead(stream, 10 + LOST)
    arguments = [
        *("kafka", "republish", "events", "--topic", stream.topic, "--partition", "0"),
        *("--reason", "x", "--by", "ann", "--yes", "--json"),
    ]
    environment = {
        **os.environ,
        "WAYBILL_CONFIG": str(stream.file),
        failpoints.VARIABLE: f"{place}=kill" + (f"@{passes}" if passes > 1 else ""),
    }
    killed = subprocess.run([WAYBILL, *arguments], env=environment, capture_output=True, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    stream.produce_events(20, first=50)  # others write to the topic as well
    ran = stream.waybill(*arguments)
    assert ran.code == 0, ran.err
    assert [each["messages"] for each in ran.document["published"]] == [LOST]
    again = [each for each in consume_all(stream) if each.headers()]
    assert [each.key() for each in again] == [b"k%d" % offset for offset in range(10, 10 + LOST)]
    assert stream.waybill(*arguments).document["published"] == []
