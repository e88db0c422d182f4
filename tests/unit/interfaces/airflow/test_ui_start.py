"""The pages are made at the first request, and what fails there is not told to somebody who is not signed in."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from waybill.base.errors import ConfigError
from waybill.interfaces.airflow.ui import WaybillUi


class Scene:
    def __init__(self) -> None:
        self.error: Exception | None = ConfigError("connection waybill_s3 has no secret key AKIA1")
        self.made = 0
        self.clock = 0.0
        self.ui = WaybillUi(self.create, lambda: self.clock)

    def create(self, airflow: Any) -> Any:
        del airflow
        self.made += 1
        if self.error is not None:
            raise self.error
        app = FastAPI()
        app.get("/")(lambda: "sound")
        return app

    def get(self) -> tuple[int, str]:
        answer = TestClient(self.ui).get("/")
        return answer.status_code, answer.text


@pytest.mark.parametrize("error", [ConfigError("secret AKIA1"), KeyError("secret AKIA1")])
def test_the_reason_of_a_failure_is_in_the_log_alone_and_ten_seconds_pass_before_the_next_try(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene()
    scene.error = error
    for _ in range(5):
        status, text = scene.get()
        assert (status, "AKIA1" in text, "the log of the API server" in text) == (503, False, True)
    assert scene.made == 1
    assert "AKIA1" in caplog.text
    scene.error, scene.clock = None, 11.0
    assert scene.get() == (200, '"sound"')
    assert scene.made == 2


def test_requests_that_come_while_the_app_is_made_wait_without_making_another() -> None:
    scene = Scene()
    scene.error = None

    async def ask() -> list[int]:
        import httpx

        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=scene.ui), base_url="http://test") as client:
            answers = await asyncio.gather(*(client.get("/") for _ in range(50)))
        return [answer.status_code for answer in answers]

    assert asyncio.run(ask()) == [200] * 50
    assert scene.made == 1
