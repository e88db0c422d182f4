"""URLs of webhooks are passwords: what is shown of them, and where."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages_under_test import PREFIX, Pages
from sample_status import sample_status

import waybill.watch.notify.channels as channels
from waybill.config.connections import Connection
from waybill.config.connections.masking import mask_urls_in_log, masked_url, without_urls
from waybill.interfaces.operations.declaration import Role
from waybill.replay.requests.targets import WebhookTarget

SECRET = "T0KEN8f3a"
URL = f"https://hooks.example.com:8443/services/{SECRET}?key={SECRET}"


def test_scheme_host_and_port_are_shown_and_nothing_else() -> None:
    assert masked_url(URL) == "https://hooks.example.com:8443/…"
    assert masked_url(f"https://u:{SECRET}@h/") == "https://h"
    assert masked_url("http://[::1]:80/x") == "http://[::1]:80/…"
    assert masked_url(f"http://[{SECRET}") == "…"
    assert masked_url(f"https://h:{SECRET}/") == "…"
    assert (
        without_urls(f"'{URL}' and {URL}.") == "'https://hooks.example.com:8443/…' and https://hooks.example.com:8443/…"
    )
    assert str(WebhookTarget(URL)) == "https://hooks.example.com:8443/…"
    assert WebhookTarget(URL).document()["url"] == URL


@given(st.text(max_size=60))
def test_any_text_can_be_masked(text: str) -> None:
    assert SECRET not in without_urls(f"{text} https://h/{SECRET}")
    masked_url(text)


def test_a_failed_dead_mans_ping_and_the_log_of_httpx_show_no_url(caplog: pytest.LogCaptureFixture) -> None:
    connection = Connection(conn_id="ping", host=f"http://127.0.0.1:1/{SECRET}")
    with caplog.at_level(logging.DEBUG), pytest.raises(channels.ChannelFailed) as failed:
        channels.ping(connection)
    assert SECRET not in str(failed.value)
    mask_urls_in_log("httpx")
    with caplog.at_level(logging.DEBUG, logger="httpx"):  # tasks silence it, and others of this process may have
        transport = httpx.MockTransport(lambda _: httpx.Response(200))
        with httpx.Client(transport=transport) as client:
            client.get(URL)
    assert "HTTP Request: GET https://hooks.example.com:8443/…" in caplog.text
    assert SECRET not in caplog.text


def test_pages_and_the_status_show_a_user_their_own_replays_without_urls_and_those_of_others_to_who_sees_all() -> None:
    status = sample_status()
    [own] = status.replays
    other = replace(own, id="01J8XSAMPLE0000000000000BB", requester="bob", reason=f"{URL} answers 500")
    status = replace(status, replays=(replace(own, target=URL), replace(other, target=URL)))
    pages = Pages(status=status)
    for user, role, seen in (
        ("ada", Role.ADMIN, {own.id}),
        ("bob", Role.VIEWER, {other.id}),
        ("eve", Role.ADMIN, set()),
        ("root", Role.VIEWER, {own.id, other.id}),
        ("ada", Role.ADMIN, {own.id}),
    ):
        client = pages.client(user, role)
        document = client.get(f"{PREFIX}/api/status")
        assert {each["id"] for each in json.loads(document.text)["replays"]} == seen
        for path in ("/replays", "/fragments/replays"):
            page = client.get(f"{PREFIX}{path}")
            assert {each.id for each in (own, other) if each.id in page.text} == seen
            assert SECRET not in page.text
        assert SECRET not in document.text
    pages.reader.close()
