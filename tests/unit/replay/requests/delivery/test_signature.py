"""Signatures: a receiver with the key accepts what was signed, and nothing else."""

from __future__ import annotations

import hashlib
import hmac
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.base.errors import ConfigError
from waybill.config.connections import Connection
from waybill.replay.requests.delivery.signature import Keys, is_signed_by

KEY, OLD = b"k" * 32, b"o" * 32
NOW = 1_763_892_000


@given(st.binary(max_size=200), st.integers(-300, 300))
def test_a_signed_body_is_accepted_within_the_tolerance(body: bytes, drift: int) -> None:
    assert is_signed_by([KEY], Keys(KEY).sign(body, NOW), body, NOW + drift)


@given(st.binary(max_size=50), st.binary(max_size=50))
def test_another_body_is_refused(body: bytes, other: bytes) -> None:
    assert is_signed_by([KEY], Keys(KEY).sign(body, NOW), other, NOW) == (body == other)


def test_another_key_an_old_time_and_a_changed_time_are_refused() -> None:
    header = Keys(KEY).sign(b"body", NOW)
    assert not is_signed_by([OLD], header, b"body", NOW)
    assert not is_signed_by([KEY], header, b"body", NOW + 301)
    assert not is_signed_by([KEY], header, b"body", NOW - 301)
    assert not is_signed_by([KEY], header.replace(f"t={NOW}", f"t={NOW + 1}"), b"body", NOW)


@pytest.mark.parametrize(
    "header", ["", "t=", "t=1", "v1=00", f"t={NOW},t={NOW}", "v1=é", "t=99999999999999999999,v1=1"]
)
def test_malformed_headers_are_refused(header: str) -> None:
    assert not is_signed_by([KEY], header, b"body", NOW)


def test_the_time_moved_into_the_body_is_refused() -> None:
    header = Keys(KEY).sign(b"23.x", NOW)
    assert not is_signed_by([KEY], header.replace(f"t={NOW}", f"t={NOW}.23"), b"x", NOW)


def test_while_keys_are_replaced_both_are_right() -> None:
    header = Keys(KEY, OLD).sign(b"body", NOW)
    assert is_signed_by([KEY], header, b"body", NOW)
    assert is_signed_by([OLD], header, b"body", NOW)
    assert not is_signed_by([b"x" * 32], header, b"body", NOW)


def test_the_documented_formula() -> None:
    expected = hmac.new(KEY, b"1763892000.body", hashlib.sha256).hexdigest()
    assert Keys(KEY).sign(b"body", NOW) == f"t=1763892000,v1={expected}"


def test_a_proof_is_made_with_the_key_the_token_and_the_url() -> None:
    proof = hmac.new(OLD, b"waybill-challenge-2:token:https://a/h", hashlib.sha256).hexdigest()
    assert Keys(KEY, OLD).proves("token", "https://a/h", proof.upper() + "\n")
    assert not Keys(KEY).proves("token", "https://a/h", proof)
    assert not Keys(OLD).proves("other", "https://a/h", proof)
    assert not Keys(OLD).proves("token", "https://b/h", proof)
    assert not Keys(OLD).proves_without_url("token", proof)
    assert not Keys(OLD).proves("token", "https://a/h", "token")
    assert not Keys(OLD).proves("token", "https://a/h", "ü")


def test_a_proof_of_earlier_versions_is_none_of_this_one() -> None:
    proof = hmac.new(KEY, b"waybill-challenge:token", hashlib.sha256).hexdigest()
    assert Keys(KEY).proves_without_url("token", proof)
    assert not Keys(KEY).proves("token", "https://a/h", proof)


def test_keys_come_from_a_connection_and_are_never_shown() -> None:
    conn = Connection(conn_id="hooks", password="p" * 16, extra={"previous": "q" * 16})
    keys = Keys.of(conn)
    assert keys == Keys(b"p" * 16, b"q" * 16)
    assert "ppp" not in repr(keys)
    assert "qqq" not in repr(keys)
    for bad in (
        Connection(conn_id="hooks"),
        Connection(conn_id="hooks", password="short"),
        Connection(conn_id="hooks", password="p" * 16, extra={"previous": "short"}),
    ):
        with pytest.raises(ConfigError, match="hooks") as caught:
            Keys.of(bad)
        assert "short" not in str(caught.value)


def test_the_documented_receiver_decides_as_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[5] / "docs" / "replay-webhooks.md").read_text()
    [block] = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "def is_from_waybill" in block]
    documented: dict[str, Any] = {}
    exec(block, documented)
    monkeypatch.setattr(documented["time"], "time", lambda: float(NOW))
    signed = Keys(KEY, OLD).sign(b"body", NOW)
    headers = [signed, signed[:-1], signed.upper(), "", "t=1", f"t={NOW},v1=é", Keys(KEY).sign(b"body", NOW - 301)]
    for header in headers:
        for body in (b"body", b"Body"):
            expected = is_signed_by([KEY], header, body, NOW)
            assert documented["is_from_waybill"](KEY, header, body) == expected
            assert expected == (header in (signed, signed[:-1]) and body == b"body")
