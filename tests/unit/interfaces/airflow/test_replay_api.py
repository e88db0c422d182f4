"""The replay API that Airflow's plugin mounts, when it cannot be created.

It then answers requests without authentication.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from waybill.base.errors import ReplayUnavailable
from waybill.interfaces.airflow.lazy_app import LazyApp
from waybill.interfaces.airflow.replay_api import ReplayApi
from waybill.interfaces.airflow.ui import WaybillUi

STREAMS = """
streams:
  flights:
    topics: [flights]
    parser: {name: json, event_time: {field: at, format: epoch_ms}}
    table: analytics.flights
"""


@pytest.mark.parametrize(
    ("config", "status", "answer", "logged"),
    [
        ("version: 1\nstorage: {bucket: archive}" + STREAMS, 404, "add the section `replay:`", ""),
        (
            "version: 1\nstorage: {bucket: archive}\nreplay: {workers: 0}" + STREAMS,
            503,
            "the log of the API server has the reason",
            "replay.workers",
        ),
    ],
    ids=["off", "wrong"],
)
def test_the_api_does_not_tell_a_stranger_what_is_wrong_with_the_config_and_the_log_does(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    config: str,
    status: int,
    answer: str,
    logged: str,
) -> None:
    file = tmp_path / "streams.yaml"
    file.write_text(config)
    monkeypatch.setenv("WAYBILL_CONFIG", str(file))
    given = TestClient(ReplayApi()).get("/requests")
    assert given.status_code == status
    message = given.json()["detail"]["message"]
    assert answer in message
    assert "workers" not in message
    assert logged in caplog.text


class Away:
    """A database that holds each call until it is told to fail."""

    def __init__(self) -> None:
        self.calls = 0
        self.holds = threading.Event()
        self.is_away = True

    def create(self, _airflow: Any) -> Any:
        self.calls += 1
        if self.is_away:
            self.holds.wait(30)
            raise ReplayUnavailable("postgresql://waybill@db.internal:5432/replays did not answer")
        app = FastAPI()
        app.get("/requests")(lambda: "sound")
        return app


@pytest.mark.parametrize("kind", [ReplayApi, WaybillUi])
def test_many_requests_while_the_database_is_away_hold_one_thread_and_learn_nothing(
    kind: type[LazyApp], caplog: pytest.LogCaptureFixture
) -> None:
    away, now = Away(), [0.0]
    app = kind(away.create, lambda: now[0])  # type: ignore[call-arg, arg-type]

    async def ask(requests: int) -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
            waiting = [asyncio.create_task(client.get("/requests")) for _ in range(requests)]
            while away.calls == 0:
                await asyncio.sleep(0.01)
            away.holds.set()
            return list(await asyncio.gather(*waiting))

    async def scene() -> tuple[list[httpx.Response], list[httpx.Response]]:
        while_away = await ask(45)
        assert away.calls == 1
        away.is_away, now[0] = False, 11.0
        return while_away, await ask(3)

    with caplog.at_level(logging.ERROR):
        while_away, later = asyncio.run(scene())
    assert {each.status_code for each in while_away} == {503}
    assert not any("db.internal" in each.text for each in while_away)
    assert "db.internal" in caplog.text
    assert [each.status_code for each in later] == [200] * 3
    assert away.calls == 2
