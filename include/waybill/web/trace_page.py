"""The model of the page Trace: one message, from Kafka through the archive to its row, and what it repeats."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Field", "MessageView", "ObjectView", "Place", "RowView", "TracePage", "TraceQuery", "TraceView"]


@dataclass(frozen=True, slots=True)
class TraceQuery:
    """What was asked for, as it was typed. The form sends these fields with GET."""

    stream: str = ""
    topic: str = ""
    partition: str = ""
    offset: str = ""
    id: str = ""
    """A message id: the value of the columns of `dedup.key`."""


@dataclass(frozen=True, slots=True)
class Field:
    """A column with its value, or a header of the message."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Place:
    """A message."""

    name: str
    """`topic/partition@offset`."""
    href: str
    """The page that traces it."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ObjectView:
    """The backup object that holds the message."""

    bucket: str
    key: str
    first: str
    last: str
    size: str
    written: str
    command: str


@dataclass(frozen=True, slots=True)
class MessageView:
    """The message, byte for byte as it is in the archive."""

    timestamp: str
    key: str
    """As text, or as hexadecimal bytes."""
    value: str
    """As text, or as hexadecimal bytes; cut if it is long."""
    is_text: bool
    is_cut: bool
    size: str
    headers: tuple[Field, ...]
    raw_href: str
    """The address of the value's bytes, to download."""


@dataclass(frozen=True, slots=True)
class RowView:
    """The row of the message in a table."""

    table: str
    """The name of the table; the quarantine's, if the message could not be parsed."""
    is_quarantined: bool
    fields: tuple[Field, ...]
    reason: str
    """Why it is in quarantine; '' if it is not."""


@dataclass(frozen=True, slots=True)
class TraceView:
    """What was found."""

    stream: str
    stream_href: str
    place: Place
    is_archived: bool
    archive_text: str
    """One sentence about the archive: `archived`, `not archived yet`, `an accepted gap: …`."""
    object: ObjectView | None
    message: MessageView | None
    row: RowView | None
    row_text: str
    """One sentence about the row: `published`, `in quarantine`, `not published yet`."""
    unique_text: str
    """One sentence about dedup: `unique`, `a duplicate of …`, `not swept yet`, `the stream has no dedup`."""
    first: Place | None
    """The message that this one repeats."""
    duplicates: tuple[Place, ...]
    """Messages that repeat this one."""
    seconds: float
    command: str


@dataclass(frozen=True, slots=True)
class TracePage:
    """The page. Without a query, it shows the form only."""

    query: TraceQuery
    streams: tuple[str, ...]
    """To choose from."""
    found: tuple[TraceView, ...]
    """One; several if a message id belongs to several messages."""
    problem: str
    """Why nothing is found, with its remedy; '' if there is no problem."""
    command: str
    """The command that prints the same; '' without a query."""
