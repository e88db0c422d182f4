"""Tokens against forged requests: each form sends back a token that only a page of this app can contain.

A browser gets a cookie with a random value (`SameSite=Strict`, not readable by scripts). The token of a form is a MAC
of that value, of the user's name and of the page's own key, made with a secret that all API servers share. Another site
can only make the browser send the cookie, and does not know a token; a token is valid for one user.

The key is the time at which the page was made, with random digits: a token is valid for a day, and an action that is
sent twice from one page (a double click, a reload) is recognized as the same action.

`is_own_origin` is the second check: the browser states the origin of the form.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Collection
from urllib.parse import urlsplit

COOKIE = "waybill_csrf"
_BYTES = 24
_VALID_MS = 24 * 3_600_000
_CLOCKS_MS = 5 * 60_000
"""The clocks of two API servers differ by this at most."""


def new_cookie() -> str:
    """Return a random value for the cookie."""
    return secrets.token_urlsafe(_BYTES)


def new_page_key(now_ms: int) -> str:
    """Return the key of a page that is made now."""
    return f"{now_ms}-{secrets.token_hex(8)}"


def time_of_page_key(page_key: str) -> int:
    """Return when the page of a key was made, as epoch ms."""
    return int(page_key.partition("-")[0])


def csrf_token(secret: bytes, cookie: str, user: str, page_key: str) -> str:
    """Return the token of a cookie and a user for the forms of a page."""
    signed = f"{len(cookie)}:{cookie}{len(page_key)}:{page_key}{user}"
    return f"{page_key}.{hmac.new(secret, signed.encode(), hashlib.sha256).hexdigest()}"


def page_key_of(token: str, secret: bytes, cookie: str, user: str, now_ms: int) -> str | None:
    """Return the page's key in a form's token; None if it is not a token of the cookie and the user, or too old."""
    page_key = token.partition(".")[0]
    if not cookie or not hmac.compare_digest(token.encode(), csrf_token(secret, cookie, user, page_key).encode()):
        return None
    age_ms = now_ms - time_of_page_key(page_key)
    return page_key if -_CLOCKS_MS <= age_ms <= _VALID_MS else None


def is_own_origin(origin: str | None, fetch_site: str | None, hosts: Collection[str]) -> bool:
    """Return whether a form was sent by a page of this server.

    `origin`: the header `Origin`, which every browser sends with a POST. `fetch_site`: the header `Sec-Fetch-Site`.
    `hosts`: the names, with ports, by which browsers reach this server.
    """
    if fetch_site not in (None, "same-origin"):
        return False
    if origin is None:
        return False
    try:
        return urlsplit(origin).netloc in hosts
    except ValueError:  # not a URL, such as `http://[`
        return False
