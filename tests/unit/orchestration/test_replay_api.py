"""The replay API that Airflow's plugin mounts, when the config does not allow it to work."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from waybill.orchestration.replay_api import ReplayApi

STREAMS = """
streams:
  flights:
    topics: [flights]
    parser: {name: json, event_time: {field: at, format: epoch_ms}}
    table: analytics.flights
"""


@pytest.mark.parametrize(
    ("config", "status", "message"),
    [
        ("version: 1\nstorage: {bucket: archive}" + STREAMS, 404, "add the section `replay:`"),
        ("version: 1\nstorage: {bucket: archive}\nreplay: {workers: 0}" + STREAMS, 503, "replay.workers"),
    ],
    ids=["off", "wrong"],
)
def test_the_api_says_why_it_does_not_work_and_disturbs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str, status: int, message: str
) -> None:
    file = tmp_path / "streams.yaml"
    file.write_text(config)
    monkeypatch.setenv("WAYBILL_CONFIG", str(file))
    answer = TestClient(ReplayApi()).get("/requests")
    assert answer.status_code == status
    assert message in answer.json()["detail"]["message"]
