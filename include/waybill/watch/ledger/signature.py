"""Sign a ledger, and check the signature of one: Ed25519 (RFC 8032) over canonical JSON.

A signed ledger is `{"ledger": …, "signature": {"algorithm", "public_key", "value"}}`. The signature covers the ledger
alone, as canonical JSON: UTF-8, keys sorted, no spaces. A ledger holds no fractions, so its numbers have one spelling.
The file itself may be formatted in any way.

The signature shows who made the ledger only if the public key comes from elsewhere. The key in the file only shows that
the file was not changed by accident.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from enum import StrEnum
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from waybill.base.errors import ConfigError
from waybill.config.connections import Connection

_ALGORITHM = "ed25519"
_KEY_BYTES = 32


class SignatureCheck(StrEnum):
    """What the check of a file found."""

    VALID = "valid"
    """Signed with the given key, and not changed since."""
    UNCHANGED = "unchanged"
    """Not changed since it was signed with the key in the file. That key was not compared with a known one."""
    CHANGED = "changed"
    """The content is not what was signed."""
    WRONG_KEY = "wrong key"
    """Signed with another key than the given one."""
    UNSIGNED = "unsigned"
    """There is no signature."""


def read_signing_key(connection: Connection) -> Ed25519PrivateKey:
    """Return the private key in the password of a connection: PEM (PKCS 8, without a password), or base64 of 32 bytes.

    Raises `ConfigError`, which does not contain the key, if there is none or it is of another kind.
    """
    text = connection.require(connection.password, "password (the private key, as PEM or base64)").strip()
    try:
        # A connection as a URI, or in Airflow's form, may hold line breaks as \\n.
        key = (
            load_pem_private_key(text.replace("\\n", "\n").encode(), password=None)
            if text.startswith("-----")
            else Ed25519PrivateKey.from_private_bytes(_raw_key(text))
        )
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        connection.refuse("its password is no Ed25519 private key: PEM (PKCS 8) or base64 of 32 bytes")
    return key


def read_public_key(text: str) -> Ed25519PublicKey:
    """Return a public key from PEM or base64 of 32 bytes. Raises `ConfigError`."""
    text = text.strip()
    try:
        key = (
            load_pem_public_key(text.encode())
            if text.startswith("-----")
            else Ed25519PublicKey.from_public_bytes(_raw_key(text))
        )
    except ValueError:
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError("the public key is no Ed25519 public key: PEM, or base64 of 32 bytes")
    return key


def public_key_of(document: dict[str, Any]) -> str | None:
    """Return the public key that a signed document names, as base64; None if it is not signed."""
    signature = document.get("signature")
    key = signature.get("public_key") if isinstance(signature, dict) else None
    return key if isinstance(key, str) else None


def sign(content: dict[str, Any], key: Ed25519PrivateKey, subject: str = "ledger") -> dict[str, Any]:
    """Return the signed document of a ledger, or of the value that `subject` names. The value holds no fractions."""
    return {
        subject: content,
        "signature": {
            "algorithm": _ALGORITHM,
            "public_key": _text_of(key.public_key()),
            "value": b64encode(key.sign(_canonical(content))).decode(),
        },
    }


def check_signed(document: Any, public_key: Ed25519PublicKey | None, subject: str = "ledger") -> SignatureCheck:
    """Compare a parsed JSON document with its signature, and the key with `public_key` if that is given."""
    signature = document.get("signature") if isinstance(document, dict) else None
    if not isinstance(signature, dict) or subject not in document:
        return SignatureCheck.UNSIGNED
    if signature.get("algorithm") != _ALGORITHM:
        return SignatureCheck.CHANGED
    if public_key is not None and signature.get("public_key") != _text_of(public_key):
        return SignatureCheck.WRONG_KEY
    try:
        signer = Ed25519PublicKey.from_public_bytes(_raw_key(str(signature["public_key"])))
        signer.verify(b64decode(str(signature["value"]), validate=True), _canonical(document[subject]))
    except (InvalidSignature, KeyError, ValueError):
        return SignatureCheck.CHANGED
    return SignatureCheck.UNCHANGED if public_key is None else SignatureCheck.VALID


def _canonical(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _text_of(key: Ed25519PublicKey) -> str:
    return b64encode(key.public_bytes(Encoding.Raw, PublicFormat.Raw)).decode()


def _raw_key(text: str) -> bytes:
    """Return 32 bytes from base64. Raises `ValueError`."""
    data = b64decode(text, validate=True)
    if len(data) != _KEY_BYTES:
        raise ValueError(f"{len(data)} bytes")
    return data
