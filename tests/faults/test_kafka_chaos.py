"""Brokers are killed, frozen and restarted at random: the watch reports the beginning and the end of each state
once."""

from __future__ import annotations

from pathlib import Path

import pytest
from kafka_chaos.scenario import TopicKind, draw, expected_promises
from kafka_chaos.scene import play

from devstack import Stack

pytestmark = [pytest.mark.deep, pytest.mark.faults, pytest.mark.stack_alone]


@pytest.mark.parametrize("seed", [3, 4], ids=["two at once", "short states"])
def test_each_state_is_told_once_and_once_when_it_is_over(
    stack: Stack, tmp_path: Path, topic_name: str, seed: int
) -> None:
    played = play(stack, draw(seed), tmp_path, topic_name.rpartition("-")[2])
    assert played.faults == []
    assert played.incidents or played.short_states


def test_oracle_knows_what_one_lost_broker_does_to_each_topic() -> None:
    lost = {kind: expected_promises((kind,), {2}) for kind in TopicKind}
    assert lost[TopicKind.ONE] == {"kafka_offline_partitions"}
    assert lost[TopicKind.THREE] == {"kafka_under_replicated"}
    assert lost[TopicKind.PAIR] == {"kafka_under_replicated", "kafka_single_in_sync_replica"}
    assert lost[TopicKind.TWO] == lost[TopicKind.PAIR] | {"kafka_under_min_isr"}
