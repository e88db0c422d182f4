"""Which changes of configs can cost messages, and which texts stand for the same value."""

from __future__ import annotations

import pytest

from waybill.watch.kafka_cluster.config_changes import differs, split_by_risk

DELETE, COMPACT = {"cleanup.policy": "delete"}, {"cleanup.policy": "compact"}
FOREVER = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}


@pytest.mark.parametrize(
    ("actual", "declared", "risky"),
    [
        (FOREVER, {"retention.ms": "60000"}, ["retention.ms"]),
        (FOREVER, {"retention.bytes": "60000"}, ["retention.bytes"]),
        ({**DELETE, "retention.ms": "60000"}, {"retention.ms": "59999"}, ["retention.ms"]),
        ({**DELETE, "retention.ms": "60000"}, {"retention.ms": "-1"}, []),
        ({**DELETE, "retention.ms": "60000"}, {"retention.ms": "60001"}, []),
        ({**COMPACT, "retention.ms": "60000"}, {"retention.ms": "1"}, []),
        ({"retention.ms": "60000"}, {"retention.ms": "1"}, ["retention.ms"]),
        # The policy is not changed without consent, so the retention must not be lowered before it.
        ({**DELETE, "retention.ms": "60000"}, {"retention.ms": "1", **COMPACT}, ["cleanup.policy", "retention.ms"]),
        ({**COMPACT, "retention.ms": "60000"}, {"retention.ms": "1", **DELETE}, ["cleanup.policy", "retention.ms"]),
        (DELETE, {"cleanup.policy": "compact,delete"}, ["cleanup.policy"]),
        ({"cleanup.policy": "delete,compact"}, DELETE, []),
        ({}, DELETE, ["cleanup.policy"]),
        ({"min.insync.replicas": "2"}, {"min.insync.replicas": "1"}, ["min.insync.replicas"]),
        ({"min.insync.replicas": "2"}, {"min.insync.replicas": "3"}, []),
        (
            {"unclean.leader.election.enable": "false"},
            {"unclean.leader.election.enable": "true"},
            ["unclean.leader.election.enable"],
        ),
        ({"unclean.leader.election.enable": "true"}, {"unclean.leader.election.enable": "false"}, []),
        ({**COMPACT, "delete.retention.ms": "9"}, {"delete.retention.ms": "8"}, ["delete.retention.ms"]),
        ({**DELETE, "delete.retention.ms": "9"}, {"delete.retention.ms": "8"}, []),
        ({"remote.storage.enable": "true"}, {"remote.storage.enable": "false"}, ["remote.storage.enable"]),
        ({"max.message.bytes": "9"}, {"max.message.bytes": "8"}, []),
        ({**DELETE, "retention.ms": "60000"}, {"retention.ms": "soon"}, ["retention.ms"]),
    ],
)
def test_changes_that_can_cost_messages_are_told_apart(
    actual: dict[str, str], declared: dict[str, str], risky: list[str]
) -> None:
    safe, found = split_by_risk(actual, declared)
    assert list(found) == risky
    assert all(change.risk for change in found.values())
    changed = sorted(name for name, value in declared.items() if actual.get(name) != value)
    assert sorted([*safe, *found]) == changed


@pytest.mark.parametrize(
    ("kafka", "declared"),
    [("0.5", "0.50"), ("1.0E-4", "0.0001"), ("5", "05"), ("true", "TRUE"), ("compact,delete", "delete, compact")],
)
def test_texts_of_the_same_value_do_not_differ(kafka: str, declared: str) -> None:
    assert not differs(kafka, declared)


@pytest.mark.parametrize(("kafka", "declared"), [("0.5", "0.51"), ("producer", "Producer"), ("nan", "1"), (None, "1")])
def test_other_texts_differ(kafka: str | None, declared: str) -> None:
    assert differs(kafka, declared)
