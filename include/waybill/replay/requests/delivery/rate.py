"""A token bucket: limits the requests per second to a target."""

from __future__ import annotations


class TokenBucket:
    """Up to `burst` tokens, of which `rate_per_second` are added each second. Each request takes one token.

    In any span of `s` seconds, at most `burst + rate_per_second * s` requests are sent.
    """

    def __init__(self, rate_per_second: float, burst: float = 1.0) -> None:
        """`burst` is at least 1. The bucket is full at first."""
        if rate_per_second <= 0 or burst < 1:
            raise ValueError(f"rate {rate_per_second} must be above 0, and burst {burst} at least 1")
        self._rate, self._burst = rate_per_second, burst
        self._tokens, self._at_seconds = burst, float("-inf")

    def take(self, now_seconds: float) -> float:
        """Take a token, and return the seconds to wait before the request is sent: 0 if a token was available.

        The number of tokens can become negative, so several callers wait one after the other. `now_seconds` is a clock
        that does not go backwards; if it does, nothing is added.
        """
        elapsed = now_seconds - self._at_seconds
        if elapsed > 0:
            self._tokens = min(self._burst, self._tokens + elapsed * self._rate)
            self._at_seconds = now_seconds
        self._tokens -= 1
        return max(0.0, -self._tokens / self._rate)
