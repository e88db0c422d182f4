"""Signatures of requests to webhooks, and the proof that a receiver knows the key.

A request has the header `Waybill-Signature: t=1763892000,v1=5257…`. `t` is the time of sending in epoch seconds, and
each `v1` the HMAC-SHA256 of `<t>.<body>` with one key, in hexadecimal. There are two while a key is replaced: the
receiver accepts a request if one of them is right. The time is signed, so a receiver refuses an old request that
somebody repeats.

The answer to a challenge is the HMAC-SHA256 of `waybill-challenge-2:<token>:<url>`, with the URL of the receiver as the
receiver itself knows it. The challenge does not contain the URL. So a server that forwards the challenge to a receiver
with the key gets a proof for that receiver's URL, which is not valid for its own URL. The proof of earlier versions is
the HMAC-SHA256 of `waybill-challenge:<token>`; it can be forwarded, and is accepted only if the config allows it.

A signature cannot be used as a proof, since signed texts begin with a digit, and a proof of one kind cannot be used as
one of the other kind.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from waybill.config.connections import Connection

SIGNATURE_HEADER = "Waybill-Signature"
TOLERANCE_SECONDS = 300
"""How far the time of a signature may be from the receiver's clock."""
MIN_KEY_BYTES = 16
_MAX_SIGNATURES = 10


@dataclass(frozen=True, slots=True)
class Keys:
    """The secret keys of the signatures. Neither `repr` nor an error shows them."""

    current: bytes = field(repr=False)
    previous: bytes | None = field(default=None, repr=False)
    """The previous key, which also signs while receivers change to the new one."""

    @classmethod
    def of(cls, conn: Connection) -> Keys:
        """Read a connection: its password is the key; `previous` in its extra is the previous key.

        Raises `ConfigError` if there is no key, or if it is so short that it can be guessed.
        """
        current = conn.require(conn.password, "password (the secret key of the signatures of webhooks)").encode()
        previous = conn.text("previous")
        for name, key in (("password", current), ("previous in its extra", previous and previous.encode())):
            if key and len(key) < MIN_KEY_BYTES:
                conn.refuse(
                    f"its {name} has fewer than {MIN_KEY_BYTES} bytes, which can be guessed: use 32 random ones"
                )
        return cls(current, previous.encode() if previous else None)

    def sign(self, body: bytes, at_seconds: int) -> str:
        """Return the value of the header for a body that is sent at this time, in epoch seconds."""
        keys = [self.current] if self.previous is None else [self.current, self.previous]
        return ",".join([f"t={at_seconds}", *(f"v1={_signature(key, at_seconds, body)}" for key in keys)])

    def proves(self, token: str, url: str, answer: str) -> bool:
        """Return whether `answer` proves that the receiver at `url` knows one of the keys."""
        return self._is_mac_of(f"waybill-challenge-2:{token}:{url}", answer)

    def proves_without_url(self, token: str, answer: str) -> bool:
        """Return whether `answer` is a proof of earlier versions, by any receiver that knows one of the keys."""
        return self._is_mac_of(f"waybill-challenge:{token}", answer)

    def _is_mac_of(self, text: str, answer: str) -> bool:
        keys = [self.current] if self.previous is None else [self.current, self.previous]
        given = answer.strip().lower().encode("ascii", "replace")
        # Compare all keys, so that the time does not reveal which key was nearly right.
        return any([hmac.compare_digest(given, _mac(key, text).encode()) for key in keys])  # noqa: C419


def is_signed_by(
    keys: Sequence[bytes], header: str, body: bytes, now_seconds: float, tolerance_seconds: int = TOLERANCE_SECONDS
) -> bool:
    """Return whether a request was recently signed with one of `keys`. A receiver checks this first."""
    times = re.findall(r"(?:^|,)t=([0-9]{1,12})(?=,|$)", header)
    given = re.findall(r"(?:^|,)v1=([0-9a-f]{64})(?=,|$)", header)[:_MAX_SIGNATURES]
    if len(times) != 1 or abs(now_seconds - int(times[0])) > tolerance_seconds:
        return False
    expected = [_signature(key, int(times[0]), body) for key in keys]
    return any([hmac.compare_digest(each, one) for each in given for one in expected])  # noqa: C419


def _signature(key: bytes, at_seconds: int, body: bytes) -> str:
    return hmac.new(key, f"{at_seconds}.".encode() + body, hashlib.sha256).hexdigest()


def _mac(key: bytes, text: str) -> str:
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
