"""Tokens against forged requests: each form sends back what only a page of this app could have told it.

A browser gets a cookie with a random value (`SameSite=Strict`, not readable by scripts). The token of a form is a MAC
of that value and of the user's name, made with a secret that all API servers share. Another site can make the browser
send the cookie at most, and knows no token; a token of one user is none of another's.

`is_own_origin` is the second check: the browser tells where the form came from.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Collection
from urllib.parse import urlsplit

__all__ = ["COOKIE", "csrf_token", "is_own_origin", "is_token_of", "new_cookie"]

COOKIE = "waybill_csrf"
_BYTES = 24


def new_cookie() -> str:
    """Return a random value for the cookie."""
    return secrets.token_urlsafe(_BYTES)


def csrf_token(secret: bytes, cookie: str, user: str) -> str:
    """Return the token of a cookie and a user."""
    return hmac.new(secret, f"{len(cookie)}:{cookie}{user}".encode(), hashlib.sha256).hexdigest()


def is_token_of(token: str, secret: bytes, cookie: str, user: str) -> bool:
    """Return whether a form's token is that of the cookie and the user."""
    return bool(cookie) and hmac.compare_digest(token.encode(), csrf_token(secret, cookie, user).encode())


def is_own_origin(origin: str | None, fetch_site: str | None, hosts: Collection[str]) -> bool:
    """Return whether a form was sent by a page of this server.

    `origin`: the header `Origin`, which every browser sends with a POST. `fetch_site`: the header `Sec-Fetch-Site`.
    `hosts`: the names, with ports, by which browsers reach this server.
    """
    if fetch_site not in (None, "same-origin"):
        return False
    return origin is not None and urlsplit(origin).netloc in hosts
