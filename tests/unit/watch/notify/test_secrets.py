"""No password of a connection, and no address that is one, is in an error or a log of a channel."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx
import pytest

from waybill.base.errors import UnexpectedFailure
from waybill.config.connections import Connection
from waybill.config.models.alerts import Alerts
from waybill.interfaces.airflow import deadlines
from waybill.watch.notify import channels
from waybill.watch.notify.channels import ping, send, unusable_channels
from waybill.watch.notify.http import ChannelFailed
from waybill.watch.notify.message import test_message as message_of_a_test
from waybill.watch.promises.sending import Sent, ping_dead_man

SECRET = "T0KEN-B0X-s3cr3t"
TOKEN = "hunter2-hunter2"
HOOK = Connection(
    conn_id="hook", conn_type="http", host=f"https://hooks.example.com/{SECRET}?k={SECRET}", password=TOKEN
)
ALERTS = Alerts.model_validate({"channels": {"hook": {"type": "webhook", "connection": "hook"}}, "dead_man": "hook"})
MESSAGE = message_of_a_test(ALERTS, 1_800_000_000_000)


def raise_with_secrets(*_: Any, **__: Any) -> Any:
    cause = ValueError(f"https://hooks.example.com/{SECRET} {TOKEN}")
    raise LookupError(f"no route to https://hooks.example.com/{SECRET}?k={SECRET} with {TOKEN}") from cause


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG)
    caplog.handler.setFormatter(logging.Formatter("%(message)s"))
    return caplog


def assert_masked(text: str, log: pytest.LogCaptureFixture, *, with_token: bool = True) -> None:
    for each in (text, log.text):
        assert SECRET not in each
        assert not with_token or TOKEN not in each
        assert "https://hooks.example.com/…" in each
    assert "Traceback" in log.text


def test_exception_that_no_code_expects_is_told_without_secrets(
    monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(channels, "request", raise_with_secrets)
    for call in (lambda: send(ALERTS.channels["hook"], MESSAGE, lambda _: HOOK), lambda: ping(HOOK)):
        with pytest.raises(UnexpectedFailure, match="unexpected LookupError at ") as raised:
            call()
        # Whoever logs it prints its causes as well.
        assert raised.value.__cause__ is None
        assert raised.value.__suppress_context__
        assert_masked(str(raised.value), log)


def test_dead_mans_switch_that_cannot_be_looked_up_is_told_without_secrets(log: pytest.LogCaptureFixture) -> None:
    sent = Sent()
    error = ping_dead_man("hook", raise_with_secrets, sent)
    assert error is not None
    assert sent.unexpected == [error]
    assert_masked(error, log, with_token=False)


def test_connection_that_cannot_be_checked_is_told_without_secrets(log: pytest.LogCaptureFixture) -> None:
    found = unusable_channels(ALERTS, raise_with_secrets)
    assert len(found) == 2
    for error in found.values():
        assert_masked(error, log, with_token=False)


@pytest.mark.parametrize("status", [404, 500])
def test_answer_that_repeats_the_address_is_told_without_it(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(status, content=iter([f"Cannot {request.method} {request.url.path} {TOKEN}".encode()]))

    client = httpx.Client(transport=httpx.MockTransport(answer))
    monkeypatch.setattr(
        httpx, "stream", lambda method, url, **more: client.stream(method, url, headers=more["headers"])
    )
    with pytest.raises(ChannelFailed, match=f"the server answered {status}: Cannot GET \\*\\*\\*") as raised:
        ping(HOOK)
    assert SECRET not in str(raised.value)
    assert TOKEN not in str(raised.value)


def test_missed_deadline_that_cannot_be_told_is_logged_without_secrets(
    monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    async def tell(*_: Any) -> None:
        raise_with_secrets()

    monkeypatch.setattr(deadlines, "_tell", tell)
    monkeypatch.setattr(deadlines, "_facts", lambda *_: {})
    context = {"dag_run": {"dag_id": "ingest"}}
    with pytest.raises(RuntimeError) as raised:
        asyncio.run(deadlines.tell_of_missed_deadline([{"connection": "hook"}], "1h", None, "r", context))
    assert SECRET not in str(raised.value) + log.text
