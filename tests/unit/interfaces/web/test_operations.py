"""What the actions that a DAG run does send to it."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from waybill.base.decision import Decision, Surface
from waybill.base.errors import ConfigError
from waybill.interfaces.operations.catalogue import PAGE_OPERATIONS
from waybill.interfaces.operations.declaration import OperationName
from waybill.interfaces.web.actions import Order
from waybill.interfaces.web.perform import PERFORM

CONFIG: Any = SimpleNamespace(stream=lambda name: SimpleNamespace(matches=lambda topic: topic == name))
SEEN = {"stream": "flights", "plan": "20260921T101500Z_ab12"}


def taken(action: OperationName, fields: Mapping[str, str]) -> tuple[str, Mapping[str, object]]:
    """Return the DAG that an action triggers, and what it sends."""
    sent: list[tuple[str, Mapping[str, object]]] = []

    def trigger(dag: str, form: Mapping[str, object], run: str) -> None:
        assert run == "r1"
        sent.append((dag, form))

    outcome = PERFORM[action](
        Order(
            PAGE_OPERATIONS[action],
            CONFIG,
            fields,
            Decision("why", "ada", Surface.PAGE),
            "r1",
            trigger,
            lambda dag, run: f"/{dag}/{run}",
        )
    )
    [(dag, form)] = sent
    assert (outcome.dag, outcome.run, outcome.href) == (dag, "r1", f"/{dag}/r1")
    return dag, form


@pytest.mark.parametrize("action", [OperationName.RELEASE, OperationName.REJECT])
def test_a_decision_about_a_hold_names_the_plan_that_was_seen(action: OperationName) -> None:
    assert taken(action, SEEN) == ("quality_decision", {**SEEN, "decision": str(action), "reason": "why"})
    with pytest.raises(ConfigError, match="names no plan"):
        taken(action, {**SEEN, "plan": ""})


def test_undoing_is_a_dag_of_its_own() -> None:
    fields = {"stream": "flights", "backfill": "20260921_7f3a"}
    assert taken(OperationName.UNDO, fields) == ("backfill_undo", {**fields, "reason": "why"})
    assert taken(OperationName.PROMOTE, fields) == ("backfill", {**fields, "action": "promote", "reason": "why"})


def test_a_gap_is_not_accepted_without_the_offsets_that_were_seen() -> None:
    fields = {"stream": "flights", "topic": "flights", "partition": "3", "within": ""}
    with pytest.raises(ConfigError, match="names no lost offsets"):
        taken(OperationName.ACCEPT_GAP, fields)
