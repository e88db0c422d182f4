"""The model of the page Trace: one message from Kafka through the archive to its row, and the message it repeats."""

from __future__ import annotations

from dataclasses import dataclass

from waybill.base.errors import ConfigError
from waybill.config.models.quantities import whole_number
from waybill.config.names import LAST_OFFSET, MAX_PARTITION, TopicPartition, is_topic


@dataclass(frozen=True, slots=True)
class TraceQuery:
    """The query as the user typed it. The form sends these fields with GET."""

    stream: str = ""
    topic: str = ""
    partition: str = ""
    offset: str = ""
    id: str = ""
    """A message id: the value of the columns of `dedup.key`."""

    @property
    def problem(self) -> str:
        """Why topic, partition and offset are invalid; '' if they are valid, or if the query is for an id."""
        if self.id or not (self.topic or self.offset):
            return ""
        try:
            self.place()
        except ConfigError as error:
            return str(error)
        return ""

    def place(self) -> tuple[TopicPartition, int]:
        """Return the topic-partition and the offset. Raises `ConfigError` if they are not valid in Kafka."""
        if not (self.topic and self.partition and self.offset):
            raise ConfigError("give topic, partition and offset, or a message id")
        partition, offset = whole_number(self.partition, MAX_PARTITION), whole_number(self.offset, LAST_OFFSET)
        if not is_topic(self.topic):
            raise ConfigError(f"{self.topic[:80]!r} is no topic: 1 to 249 characters of [a-zA-Z0-9._-]")
        if partition is None:
            raise ConfigError(f"{self.partition[:40]!r} is no partition: give a whole number up to {MAX_PARTITION:,}")
        if offset is None:
            raise ConfigError(f"{self.offset[:40]!r} is no offset: give a whole number up to {LAST_OFFSET:,}")
        return TopicPartition(self.topic, partition), offset


@dataclass(frozen=True, slots=True)
class Field:
    """A column with its value, or a header of the message."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class MessagePlace:
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
    """The archived message, byte for byte."""

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
    """The result of a trace."""

    stream: str
    stream_href: str
    place: MessagePlace
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
    first: MessagePlace | None
    """The message that this one repeats."""
    duplicates: tuple[MessagePlace, ...]
    """Messages that repeat this one."""
    seconds: float
    command: str


@dataclass(frozen=True, slots=True)
class TracePage:
    """The page. Without a query, it shows the form only."""

    query: TraceQuery
    streams: tuple[str, ...]
    """The streams that the user can choose."""
    found: tuple[TraceView, ...]
    """One result; several if a message id belongs to several messages."""
    problem: str
    """Why no message is found, with the remedy; '' if there is no problem."""
    command: str
    """The command that prints the same; '' without a query."""
