"""Limits of one message: a few kilobytes of a record batch can hold a message of gigabytes, or millions of headers.

The archive keeps such messages unchanged. Readers that make rows of messages leave out the value and the headers, and
state the reason. This module imports nothing: the driver of a Spark job does not need numba.
"""

from __future__ import annotations

from typing import NamedTuple

SET_ASIDE = "set_aside"
"""The column of a batch of messages that holds why a message is not complete, or why the format of its backup object
could not hold it; null for the other messages. A batch without such messages has no such column."""

MESSAGE_TOO_LARGE = "message_too_large"
"""The kind of reason of a message that exceeds a limit; the details follow after a colon."""


class Limits(NamedTuple):
    """The limits of one message."""

    max_bytes: int
    """The size of key, value and headers, as Kafka encodes them."""
    max_headers: int

    def size_reason(self, size_bytes: int) -> str:
        """Return why a message of this size is left out."""
        return (
            f"{MESSAGE_TOO_LARGE}: {size_bytes:,} bytes, and message_limits.max_bytes allows {self.max_bytes:,}; the "
            f"archive has the message"
        )

    def headers_reason(self, headers: int) -> str:
        """Return why a message with this number of headers is left out."""
        return (
            f"{MESSAGE_TOO_LARGE}: {headers:,} headers, and message_limits.max_headers allows {self.max_headers:,}; "
            f"the archive has the message"
        )

    def batch_reason(self, most_bytes: int) -> str:
        """Return why the messages at the end of an enormous batch are left out."""
        return (
            f"{MESSAGE_TOO_LARGE}: the messages of its record batch before it have more than {most_bytes:,} bytes; the "
            f"archive has the message"
        )


LARGEST = Limits(1 << 30, 1 << 20)
"""The limits of any reader, since positions in Arrow's columns are int32."""


def is_beyond_limits(reason: str) -> bool:
    """Return whether a reason of `SET_ASIDE` is that a message exceeds a limit."""
    return reason.startswith(f"{MESSAGE_TOO_LARGE}:")
