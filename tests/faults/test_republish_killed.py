"""`waybill kafka republish` is killed between any two steps: the next run publishes the other messages, and none
twice."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from archived_stream import WAYBILL, ArchivedStream
from confluent_kafka.admin import AdminClient, NewPartitions
from test_kafka_losses import consume_all
from test_unclean_election import move_ahead, run

from waybill.base import failpoints

pytestmark = [pytest.mark.faults, pytest.mark.usefixtures("stack")]

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
    arguments = republish_of(stream)
    kill_at(f"{place}=kill" + (f"@{passes}" if passes > 1 else ""), stream, arguments)
    stream.produce_events(20, first=50)  # others write to the topic as well
    admin = AdminClient({"bootstrap.servers": stream.servers})
    admin.create_partitions([NewPartitions(stream.topic, 2)])[stream.topic].result(timeout=30)
    ran = stream.waybill(*arguments)
    assert ran.code == 0, ran.err
    assert [each["messages"] for each in ran.document["published"]] == [LOST]
    again = [each for each in consume_all(stream) if each.headers()]
    assert [each.key() for each in again] == [b"k%d" % offset for offset in range(10, 10 + LOST)]
    assert stream.waybill(*arguments).document["published"] == []


@pytest.mark.deep
def test_abandoned_publication_is_published_only_when_asked_for(tmp_path: Path, topic_name: str) -> None:
    stream = ArchivedStream(tmp_path, topic_name, partitions=1)
    stream.produce_events(10)
    run(stream)
    move_ahead(stream, 10 + LOST)
    arguments = republish_of(stream)
    kill_at("republish.delivered=kill", stream, arguments)
    # `move_ahead` archived the lost messages with the log's own leader epoch. So the log seems to have those whose
    # offsets it has used again.
    left = LOST - 1_000
    assert stream.waybill(*arguments, "--abandon", "0").code == 0
    (loss,) = stream.waybill("kafka", "losses", "events", "--json").document["truncations"]
    assert (loss["not_published_offsets"], loss["abandoned_offsets"]) == (0, left)
    assert loss["published"][0]["abandoned"]["by"] == "ann"
    assert "abandoned by ann" in stream.waybill("kafka", "losses", "events").out
    ran = stream.waybill(*arguments)
    assert ran.document["published"] == []
    assert "add --again" in ran.err
    ran = stream.waybill(*arguments, "--again")
    assert [each["messages"] for each in ran.document["published"]] == [left]
    again = [each.key() for each in consume_all(stream) if each.headers()]
    assert again == [b"k%d" % offset for offset in range(10, 10 + LOST)]
    assert stream.waybill(*arguments, "--again").document["published"] == []


def republish_of(stream: ArchivedStream) -> list[str]:
    return [
        *("kafka", "republish", "events", "--topic", stream.topic, "--partition", "0"),
        *("--reason", "x", "--by", "ann", "--yes", "--json"),
    ]


def kill_at(failpoint: str, stream: ArchivedStream, arguments: list[str]) -> None:
    """Run the command until it kills itself at a failpoint."""
    environment = {**os.environ, "WAYBILL_CONFIG": str(stream.file), failpoints.VARIABLE: failpoint}
    killed = subprocess.run([WAYBILL, *arguments], env=environment, capture_output=True, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
