"""Airflow's deadline alerts: which DAGs have one, and what is sent. tests/e2e/test_deadlines.py misses a real one."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from waybill.config.models import Config
from waybill.interfaces.airflow import deadlines
from waybill.interfaces.airflow.deadlines import deadline_arguments, tell_of_missed_deadline

CONTEXT = {
    "dag_run": {
        "dag_id": "partition",
        "dag_run_id": "manual__2026-03-01T12:00:00+00:00",
        "state": "running",
        "queued_at": "2026-03-01T12:00:00Z",
    }
}


def config_of(**alerts: Any) -> Config:
    return Config.model_validate(
        {
            "version": 1,
            "storage": {"bucket": "archive"},
            "alerts": {
                "channels": {
                    "team": {"type": "email", "connection": "mail", "to": ["a@b.c"]},
                    "chat": {"type": "slack", "connection": "slack"},
                    "hook": {"type": "webhook", "connection": "hook"},
                },
                "airflow_url": "https://airflow.example.com",
                **alerts,
            },
            "streams": {
                "flights": {
                    "topics": ["flights"],
                    "table": "a.flights",
                    "parser": {"name": "json", "event_time": {"field": "at", "format": "epoch_ms"}},
                }
            },
        }
    )


def test_without_a_deadline_or_a_channel_a_dag_has_no_deadline() -> None:
    assert deadline_arguments(config_of(), None) == {}
    assert deadline_arguments(config_of(warning=["hook"]), timedelta(hours=2)) == {}


def test_deadline_counts_from_the_queue_and_its_callback_has_the_channels_as_json() -> None:
    alert = deadline_arguments(config_of(), timedelta(hours=2))["deadline"]
    assert alert.interval == timedelta(hours=2)
    assert alert.reference.reference_name == "DagRunQueuedAtDeadline"
    assert alert.callback.path == "waybill.interfaces.airflow.deadlines.tell_of_missed_deadline"
    assert [each["connection"] for each in json.loads(json.dumps(alert.callback.kwargs))["channels"]] == [
        "mail",
        "slack",
    ]
    assert alert.callback.kwargs["limit"] == "2 h"


class Told:
    """Stands for the notifiers: what was sent by connection; those in `broken` raise an error."""

    def __init__(self, *broken: str) -> None:
        self.broken = broken
        self.sent: dict[str, tuple[str, dict[str, str]]] = {}

    async def __call__(self, channel: dict[str, Any], subject: str, facts: dict[str, str]) -> Told:
        if channel["connection"] in self.broken:
            raise OSError("refused")
        self.sent[channel["connection"]] = subject, facts
        return self

    def notify(self, _: Any) -> None:
        """The message was noted when the notifier was made."""

    async def async_notify(self, _: Any) -> None:
        """The message was noted when the notifier was made."""


def tell(monkeypatch: pytest.MonkeyPatch, told: Told) -> None:
    monkeypatch.setattr(deadlines, "_notifier", told)
    alert = deadline_arguments(config_of(), timedelta(hours=2))["deadline"]
    asyncio.run(tell_of_missed_deadline(**alert.callback.kwargs, context=CONTEXT))


def test_message_names_the_run_and_links_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    tell(monkeypatch, told)
    subject, facts = told.sent["mail"]
    assert subject == "[warning] partition: the run has not ended 2 h after it was queued"
    assert told.sent["slack"] == (subject, facts)
    assert facts["Airflow"] == (
        "https://airflow.example.com/dags/partition/runs/manual__2026-03-01T12%3A00%3A00%2B00%3A00"
    )
    assert facts["Runbook"] == "docs/runbooks/run-duration.md"


def test_a_channel_that_fails_does_not_keep_the_message_from_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told("mail")
    with pytest.raises(RuntimeError, match="connection 'mail': OSError: refused"):
        tell(monkeypatch, told)
    assert told.sent.keys() == {"slack"}
