"""Which controllers have failed, by metadata and by what their leader knows of them."""

from __future__ import annotations

from waybill.config.names import TopicPartition
from waybill.services.kafka.cluster_state import Broker, ClusterState, TopicPartitionReplicas
from waybill.services.kafka.controllers import Quorum
from waybill.services.kafka.kafka import LogRange
from waybill.watch.kafka_cluster.forecast_inputs import SeenLog, _unarchived, voters_away
from waybill.watch.kafka_cluster.what_if import Unarchived

NOW = 1_000_000
STATE = ClusterState(
    "c",
    1,
    {each: Broker(each, "h", 1, None) for each in (1, 2)},
    {TopicPartition("flights", 0): TopicPartitionReplicas(1, 1, (1, 2, 3), (1, 2), ())},
)


def test_broker_that_metadata_do_not_list_is_away_as_a_controller_too() -> None:
    assert voters_away(Quorum(1, dict.fromkeys((1, 2, 3), NOW)), STATE) == {3}


def test_controller_alone_is_away_when_it_has_not_caught_up_for_long() -> None:
    caught_up = {1: NOW, 101: NOW - 500, 102: NOW - 60_000, 103: -1}
    assert voters_away(Quorum(1, caught_up), STATE) == {102}, "of 103 nothing is known"


def test_log_without_an_answer_has_the_end_that_a_watch_saw_or_none() -> None:
    assert _unarchived(LogRange(5, 30), 10, lambda: None) == Unarchived(20)
    assert _unarchived(LogRange(5, 30), None, lambda: None) == Unarchived(25)
    assert _unarchived(None, 10, lambda: None) is None
    assert _unarchived(None, 10, lambda: SeenLog(77, 5, 30)) == Unarchived(20, seen_at_ms=77)
    assert _unarchived(None, None, lambda: SeenLog(77, 5, 30)) == Unarchived(25, seen_at_ms=77)
