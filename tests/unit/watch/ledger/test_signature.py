"""Signed ledgers: which changes the check finds, and which keys it accepts."""

from __future__ import annotations

import copy
import json
from base64 import b64encode
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from waybill.base.errors import ConfigError
from waybill.config.connections import Connection
from waybill.watch.ledger.signature import (
    SignatureCheck,
    check_signed,
    public_key_of,
    read_public_key,
    read_signing_key,
    sign,
)

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(32))
LEDGER: dict[str, Any] = {"v": 1, "stream": "flüge", "topic_partitions": [{"messages": 3, "gaps": []}], "notes": []}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8"), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3),
    max_leaves=8,
)


def connection(password: str | None) -> Connection:
    return Connection(conn_id="key", password=password)


def pem(key: Any) -> str:
    return str(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode())


@given(VALUES)
def test_a_signed_ledger_is_valid_however_it_is_formatted(content: Any) -> None:
    signed = sign({"content": content}, KEY)
    for text in (json.dumps(signed, indent=3), json.dumps(signed, ensure_ascii=False, sort_keys=True)):
        assert check_signed(json.loads(text), KEY.public_key()) is SignatureCheck.VALID
        assert check_signed(json.loads(text), None) is SignatureCheck.UNCHANGED
        assert check_signed(json.loads(text), OTHER.public_key()) is SignatureCheck.WRONG_KEY


@given(VALUES, VALUES)
def test_any_other_content_is_changed(content: Any, other: Any) -> None:
    signed = sign({"content": content}, KEY)
    signed["ledger"] = {"content": other}
    same = json.dumps(content, sort_keys=True) == json.dumps(other, sort_keys=True)
    expected = SignatureCheck.VALID if same else SignatureCheck.CHANGED
    assert check_signed(signed, KEY.public_key()) is expected


@pytest.mark.parametrize(
    ("name", "given_value"),
    [("value", "AAAA"), ("value", "not base64"), ("algorithm", "none"), ("value", None), ("public_key", "AAAA")],
)
def test_a_signature_that_was_changed_is_never_valid(name: str, given_value: Any) -> None:
    signed = copy.deepcopy(sign(LEDGER, KEY))
    signed["signature"][name] = given_value
    assert check_signed(signed, None) is SignatureCheck.CHANGED
    assert check_signed(signed, KEY.public_key()) in (SignatureCheck.CHANGED, SignatureCheck.WRONG_KEY)


def test_a_signature_by_another_key_under_the_right_key_s_name_is_changed() -> None:
    signed = sign(LEDGER, OTHER)
    signed["signature"]["public_key"] = public_key_of(sign(LEDGER, KEY))
    assert check_signed(signed, KEY.public_key()) is SignatureCheck.CHANGED


@pytest.mark.parametrize("document", [LEDGER, None, [], {"signature": None}, {"ledger": LEDGER}, "text"])
def test_a_file_without_a_signature_is_unsigned(document: Any) -> None:
    assert check_signed(document, KEY.public_key()) is SignatureCheck.UNSIGNED


@pytest.mark.parametrize("text", [pem(KEY), pem(KEY).replace("\n", "\\n"), b64encode(bytes(range(32))).decode()])
def test_the_private_key_is_the_password_of_a_connection(text: str) -> None:
    assert sign(LEDGER, read_signing_key(connection(text))) == sign(LEDGER, KEY)


@pytest.mark.parametrize("text", ["secret", b64encode(b"short").decode(), pem(generate_private_key(SECP256R1()))])
def test_another_password_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ConfigError, match="no Ed25519 private key") as refused:
        read_signing_key(connection(text))
    assert text not in str(refused.value)


def test_a_connection_without_a_password_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no password"):
        read_signing_key(connection(None))


@pytest.mark.parametrize("encoding", [Encoding.PEM, Encoding.Raw])
def test_a_public_key_is_read_from_pem_or_base64(encoding: Encoding) -> None:
    kind = PublicFormat.Raw if encoding is Encoding.Raw else PublicFormat.SubjectPublicKeyInfo
    data = KEY.public_key().public_bytes(encoding, kind)
    text = b64encode(data).decode() if encoding is Encoding.Raw else data.decode()
    assert check_signed(sign(LEDGER, KEY), read_public_key(text)) is SignatureCheck.VALID


def test_another_public_key_is_refused() -> None:
    with pytest.raises(ConfigError, match="no Ed25519 public key"):
        read_public_key("AAAA")
