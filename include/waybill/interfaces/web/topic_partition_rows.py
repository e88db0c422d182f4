"""The topic-partitions on the page of a stream: the worst hundred, and the others by page or by name.

A stream may have 10,000 topic-partitions. A page with all of them would take a second to make and eleven megabytes to
send, every few seconds, so the server chooses, and the address of the page names the choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from waybill.config.models.quantities import counted, whole_number
from waybill.interfaces.web.chain_bar import ChainBar, end_of_chain, whole_chain
from waybill.interfaces.web.figures import Figure, Tone, count_text
from waybill.interfaces.web.frame import Links
from waybill.watch.promises.status import StreamStatus, TopicPartitionStatus

ROWS_ON_A_PAGE = 100
_MOST_PAGES = 1_000_000


@dataclass(frozen=True, slots=True)
class TopicPartitionFilter:
    """Which topic-partitions a page shows."""

    text: str = ""
    """A part of `topic/partition`; '' for all."""
    page: int = 1

    @classmethod
    def of(cls, parameters: Mapping[str, str]) -> TopicPartitionFilter:
        """Return the choice of an address. Any text that is not a page number is page 1."""
        page = whole_number(parameters.get("page", ""), _MOST_PAGES)
        return cls(parameters.get("tp", "")[:300].strip(), page or 1)

    @property
    def query(self) -> str:
        """Return the query of an address, with its `?`; '' for the first page of all."""
        fields = {"tp": self.text, "page": self.page if self.page > 1 else ""}
        chosen = urlencode({name: value for name, value in fields.items() if value})
        return f"?{chosen}" if chosen else ""


@dataclass(frozen=True, slots=True)
class TopicPartitionRow:
    """A topic-partition: offsets in Kafka, S3 and the tables."""

    name: str
    """`topic/partition`."""
    earliest: Figure
    committed: Figure
    end: Figure
    lag: Figure
    lag_seconds: Figure
    published: Figure
    swept: Figure
    archived_messages: Figure
    stop: str
    whole: ChainBar
    tail: ChainBar
    """The end of the chain, enlarged."""
    trace_href: str
    """The page that traces the newest archived message; '' if nothing is archived."""


@dataclass(frozen=True, slots=True)
class TopicPartitionRows:
    """The chosen rows."""

    rows: tuple[TopicPartitionRow, ...]
    """Stopped ones first, then those with the most lag."""
    choice: TopicPartitionFilter
    shown: str
    """Which ones are shown: `1 to 100 of 10,000`."""
    before: str
    """The address of the previous page; '' on the first page."""
    after: str
    size: int
    """How many rows a page has."""
    has_form: bool
    """Whether there are so many topic-partitions that a form is useful."""
    commands: tuple[tuple[str, str], ...]
    """Commands that print the inputs of the columns: text and command."""


def choose_rows(stream: StreamStatus, choice: TopicPartitionFilter, links: Links) -> TopicPartitionRows:
    """Return the chosen topic-partitions of a stream."""
    wanted = choice.text.lower()
    matching = [tp for tp in stream.topic_partitions if not wanted or wanted in f"{tp.topic}/{tp.partition}".lower()]
    matching.sort(key=lambda tp: (not tp.stop, -tp.lag, tp.topic, tp.partition))
    last_page = max(1, -(-len(matching) // ROWS_ON_A_PAGE))
    page = min(choice.page, last_page)
    first = (page - 1) * ROWS_ON_A_PAGE
    chosen = matching[first : first + ROWS_ON_A_PAGE]
    here = links.stream(stream.name)

    def address(number: int) -> str:
        is_page = 1 <= number <= last_page
        return f"{here}{TopicPartitionFilter(choice.text, number).query}#topic-partitions" if is_page else ""

    return TopicPartitionRows(
        rows=tuple(_row(stream, tp, links) for tp in chosen),
        choice=TopicPartitionFilter(choice.text, page),
        shown=_shown(first, len(chosen), len(matching), len(stream.topic_partitions)),
        before=address(page - 1),
        after=address(page + 1),
        size=ROWS_ON_A_PAGE,
        has_form=len(stream.topic_partitions) > ROWS_ON_A_PAGE or bool(choice.text),
        commands=(
            ("earliest, end, committed, lag", f"waybill offsets ls --stream {stream.name}"),
            ("backup objects up to the committed offset", f"waybill ls {stream.name} TOPIC/PARTITION"),
            ("archived messages, rows in the tables", f"waybill verify {stream.name}"),
            ("swept", f"waybill dedup status {stream.name}"),
        ),
    )


def _shown(first: int, shown: int, matching: int, all_of_them: int) -> str:
    if not matching:
        return f"none of {counted(all_of_them, 'topic-partition')}"
    of_all = "" if matching == all_of_them else f", of {counted(all_of_them, 'topic-partition')} in all"
    return f"{first + 1:,} to {first + shown:,} of {matching:,}{of_all}"


def _row(stream: StreamStatus, tp: TopicPartitionStatus, links: Links) -> TopicPartitionRow:
    trace = ""
    if tp.committed > tp.archived_from:
        trace = links.trace(stream.name, tp.topic, tp.partition, tp.committed - 1)
    tone = Tone.CRITICAL if tp.stop else Tone.NONE
    return TopicPartitionRow(
        name=f"{tp.topic}/{tp.partition}",
        earliest=Figure(count_text(tp.earliest)),
        committed=Figure(count_text(tp.committed), href=trace),
        end=Figure(count_text(tp.end)),
        lag=Figure(count_text(tp.lag), tone, value=tp.lag),
        lag_seconds=Figure(f"{tp.lag_seconds:,.0f} s" if tp.lag else "0 s", tone),
        published=Figure(count_text(tp.published), href=links.dag(stream.dags.get("partition", ""))),
        swept=Figure(count_text(tp.swept), href=links.dag(stream.dags.get("dedup", "")) if tp.swept else ""),
        archived_messages=Figure(count_text(tp.archived_messages)),
        stop=tp.stop,
        whole=whole_chain(tp),
        tail=end_of_chain(tp),
        trace_href=trace,
    )
