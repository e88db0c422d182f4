"""`waybill ledger`: print the balance of a stream, sign it, and check signed ledgers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import typer

from waybill.base.errors import ConfigError, ConnectionMissing, KafkaUnavailable
from waybill.config.connections import KafkaEndpoint, find_connection
from waybill.config.models import Config
from waybill.config.models.quantities import counted
from waybill.config.names import TopicPartition, day_marks_prefix, day_of
from waybill.interfaces.cli.commands.options import LedgerBy
from waybill.interfaces.cli.render import PrintedColumn, count, print_json, print_table, time_text_of
from waybill.interfaces.cli.targets import load_streams, open_coordinator
from waybill.services.coordination import DayMark, StreamMark
from waybill.tables.staging.services import StagingServices, services_of
from waybill.watch.ledger import (
    Ledger,
    LedgerPeriod,
    Line,
    PeriodLedger,
    Periods,
    ReadLogEnds,
    read_ledger,
    read_ledger_by_period,
    record_ledger,
)
from waybill.watch.ledger.signature import (
    SignatureCheck,
    check_signed,
    public_key_of,
    read_public_key,
    read_signing_key,
    sign,
)

_KAFKA_TIMEOUT = timedelta(seconds=5)

_Terms = Sequence[tuple[str, Callable[[Line], int | None]]]

_WORDS = {
    SignatureCheck.VALID: "valid: signed with this key, and not changed since",
    SignatureCheck.UNCHANGED: (
        "not changed since it was signed with the key {key}; give --public-key to compare that key"
    ),
    SignatureCheck.CHANGED: "CHANGED: the content is not what was signed",
    SignatureCheck.WRONG_KEY: "WRONG KEY: signed with the key {key}, which is not the given one",
    SignatureCheck.UNSIGNED: "UNSIGNED: the file has no signature",
}


@dataclass(frozen=True, slots=True)
class Range:
    """The days (UTC) that the ledger covers; None: from the beginning, or until now."""

    since: date | None = None
    until: date | None = None
    """This day is included."""

    @property
    def is_whole(self) -> bool:
        return self.since is None and self.until is None

    def overlaps(self, period: LedgerPeriod) -> bool:
        """Return whether a day of the period is in the range. A day begins at its first watch."""
        begins = self.until is None or period.from_ms is None or day_of(period.from_ms) <= self.until
        ends = self.since is None or period.until_ms is None or day_of(period.until_ms) > self.since
        return begins and ends


def run(
    stream: str,
    *,
    by: LedgerBy,
    days: Range,
    kafka: bool,
    read_objects: bool,
    record: bool,
    as_json: bool,
    sign_with: str | None,
) -> None:
    """Print the ledger of a stream, and exit with 1 if it does not balance. See `waybill ledger --help`."""
    key = None if sign_with is None else read_signing_key(find_connection(sign_with))
    ledger = _read(stream, by, days, kafka=kafka, read_objects=read_objects, record=record)
    if key is not None:
        print_json(sign(ledger.document(), key))
    elif as_json:
        print_json(ledger.document())
    elif isinstance(ledger, Ledger):
        print_ledger(ledger)
    else:
        _print_periods(ledger, by)
    if ledger.imbalances:
        raise typer.Exit(1)


def _read(
    stream: str, by: LedgerBy, days: Range, *, kafka: bool, read_objects: bool, record: bool
) -> Ledger | PeriodLedger:
    if days.since is not None and days.until is not None and days.until < days.since:
        raise ConfigError(f"--until {days.until} is before --since {days.since}: give the first and the last day")
    if days.since is not None and days.since > (today := datetime.now(UTC).date()):
        raise ConfigError(f"--since {days.since} is in the future: today is {today} (UTC)")
    is_whole = by is LedgerBy.TOPIC_PARTITION and days.is_whole
    if record and (not is_whole or read_objects):
        raise ConfigError(
            "--record stores the balance of the whole stream: leave out --by, --since, --until and --read-objects"
        )
    config = load_streams()
    config.stream(stream)
    with services_of(config) as services, open_coordinator(config, stream) as coordinator:
        read_log_ends = _log_ends_of(config, stream) if kafka else _without_kafka
        if record:
            return record_ledger(config, stream, services, coordinator, read_log_ends)
        list_committed = coordinator.list_committed
        if is_whole:
            return read_ledger(config, stream, services, list_committed, read_log_ends, read_objects=read_objects)
        marks = _read_marks(config, stream, services)
        if by is LedgerBy.TOPIC_PARTITION:
            marks = _outer_marks(marks, days)
        ledger = read_ledger_by_period(
            config, stream, services, list_committed, read_log_ends, marks, read_objects=read_objects
        )
        return ledger.within([period for period, _ in ledger.periods if days.overlaps(period)])


def _read_marks(config: Config, stream: str, services: StagingServices) -> list[StreamMark]:
    """Return the marks of all days, oldest first. Raises `ConfigError` if there are none."""
    store = services.store
    generation = config.stream(stream).generation
    keys = sorted(store.keys(day_marks_prefix(store.prefix)))
    marks = [DayMark.parse(store.read(key), key).of_stream(stream, generation) for key in keys]
    if not marks:
        raise ConfigError(
            "there are no days yet: the first watch of a day stores where it begins; run the DAG watch, or `waybill "
            "watch` each minute"
        )
    return marks


def _outer_marks(marks: Sequence[StreamMark], days: Range) -> list[StreamMark]:
    """Return the first and the last mark of the range, so that all its periods become one."""
    shown = [period for period in Periods(marks) if days.overlaps(period)]
    bounds = {shown[0].from_ms, shown[-1].until_ms} if shown else set()
    return [mark for mark in marks if mark.at_ms in bounds]


def run_check(file: Path, public_key: str | None) -> None:
    """Print whether a signed ledger is unchanged, and exit with 1 if it is not."""
    key = None if public_key is None else read_public_key(_key_text(public_key))
    try:
        document = json.loads(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from None
    except ValueError:
        document = None
    result = check_signed(document, key)
    signer = public_key_of(document) if isinstance(document, dict) else None
    typer.echo(f"{file}: {_WORDS[result].format(key=signer)}")
    if result not in (SignatureCheck.VALID, SignatureCheck.UNCHANGED):
        raise typer.Exit(1)


def _key_text(given: str) -> str:
    """Return a key that was given as text, or as the path of a file."""
    path = Path(given)
    try:
        return path.read_text() if path.is_file() else given
    except (OSError, UnicodeDecodeError):
        raise ConfigError(f"the public key {given} cannot be read") from None


def _log_ends_of(config: Config, stream: str) -> ReadLogEnds:
    def read() -> Mapping[TopicPartition, int]:
        # It takes a while to import, and --no-kafka does not need it.
        from waybill.services.kafka.kafka import KafkaSource

        try:
            endpoint = KafkaEndpoint.of(find_connection(config.kafka.connection))
        except ConnectionMissing as error:
            raise KafkaUnavailable(str(error)) from None
        with KafkaSource(endpoint, retry_timeout=_KAFKA_TIMEOUT) as source:
            return source.ends_briefly(source.topic_partitions(config.stream(stream)))

    return read


def _without_kafka() -> Mapping[TopicPartition, int]:
    raise KafkaUnavailable("Kafka was not asked (--no-kafka)")


# --- the printed tables -----------------------------------------------------------------------------------------------


def print_ledger(ledger: Ledger) -> None:
    """Print a table for each equation, then accepted gaps, notes and imbalances."""
    _print_equations("topic-partition", [(str(line.tp), [line]) for line in ledger.lines])
    _print_result(ledger, ledger.lines)


def _print_periods(ledger: PeriodLedger, by: LedgerBy) -> None:
    """Print a table for each equation, by day or by topic-partition, then as `print_ledger`."""
    lines = [line for _, period_lines in ledger.periods for line in period_lines]
    if by is LedgerBy.DAY:
        _print_equations("day", [(str(period), period_lines) for period, period_lines in ledger.periods])
    else:
        for period, _ in ledger.periods:
            until = "now" if period.until_ms is None else time_text_of(period.until_ms)
            since = "the beginning" if period.from_ms is None else time_text_of(period.from_ms)
            typer.echo(f"archived from {since} to {until}")
        _print_equations("topic-partition", [(str(line.tp), [line]) for line in lines])
    _print_result(ledger, lines)


def _print_equations(title: str, groups: Sequence[tuple[str, Sequence[Line]]]) -> None:
    """Print a table for each equation that has terms, with a row for each group of lines."""
    lines = [line for _, group in groups for line in group]
    _print_terms(title, groups, _log_terms(lines))
    if any(line.messages is not None for line in lines):
        typer.echo()
        _print_terms(
            title,
            [(name, [line for line in group if line.messages is not None]) for name, group in groups],
            _MESSAGE_TERMS,
        )
    if any(line.rows is not None for line in lines):
        typer.echo()
        _print_terms(
            title, [(name, [line for line in group if line.rows is not None]) for name, group in groups], _ROW_TERMS
        )
    typer.echo()


def _print_result(ledger: Ledger | PeriodLedger, lines: Sequence[Line]) -> None:
    """Print accepted gaps, notes, imbalances, and whether the ledger balances."""
    for line in lines:
        for gap in line.gaps:
            typer.echo(f"accepted: {gap}, by {gap.accepted_by}: {gap.reason}")
    for note in ledger.notes:
        typer.echo(f"note: {note}")
    imbalances = ledger.imbalances
    for imbalance in imbalances:
        typer.echo(f"does not balance: {imbalance}")
    if imbalances:
        typer.echo(
            f"\nNOT BALANCED: {counted(len(imbalances), 'imbalance')}. `waybill verify {ledger.stream}` reads the "
            f"messages and lists the offsets"
        )
    else:
        known = all(line.log.messages is not None for line in lines)
        typer.echo("balanced" if known else "balanced, as far as it is known: see the notes")


def _log_terms(lines: Sequence[Line]) -> _Terms:
    """Return the columns of the first equation: the main ones, and those with a figure other than 0."""
    always: _Terms = (
        ("offsets", lambda line: line.log.offsets),
        ("messages", lambda line: line.log.messages),
        ("control", _log_term("control")),
        ("aborted", _log_term("aborted")),
        ("compacted", _log_term("unexplained")),
    )
    sometimes: _Terms = (
        ("not recorded", _log_term("unknown")),
        ("gaps", lambda line: line.log.gaps),
    )
    shown = [(title, term) for title, term in sometimes if any(term(line) for line in lines)]
    return [*always, *shown, ("not archived", lambda line: line.log.not_archived)]


def _log_term(name: str) -> Callable[[Line], int | None]:
    """Return a term that is unknown if the messages are unknown."""
    return lambda line: None if line.log.messages is None else getattr(line.log, name)


def _message_term(name: str) -> Callable[[Line], int | None]:
    return lambda line: None if line.messages is None else getattr(line.messages, name)


def _row_term(name: str) -> Callable[[Line], int | None]:
    return lambda line: None if line.rows is None else getattr(line.rows, name)


_MESSAGE_TERMS: _Terms = (
    ("messages", lambda line: line.log.messages),
    ("rows", _message_term("rows")),
    ("quarantine", _message_term("quarantine")),
    ("held", _message_term("held")),
    ("waiting", _message_term("waiting")),
)
_ROW_TERMS: _Terms = (
    ("rows", _message_term("rows")),
    ("unique", _row_term("unique")),
    ("duplicates", _row_term("duplicates")),
    ("unswept", _row_term("unswept")),
    ("left out", _row_term("left_out")),
)


def _print_terms(title: str, groups: Sequence[tuple[str, Sequence[Line]]], terms: _Terms) -> None:
    """Print a table with a row for each group of lines that is not empty, and one with the sums."""
    shown = [(name, lines) for name, lines in groups if lines]
    if len(shown) > 1:
        shown.append(("total", [line for _, lines in shown for line in lines]))
    rows = [[name, *(count(_sum(term, lines)) for _, term in terms)] for name, lines in shown]
    print_table([PrintedColumn(title), *(PrintedColumn(term, figure=True) for term, _ in terms)], rows)


def _sum(term: Callable[[Line], int | None], lines: Sequence[Line]) -> int | None:
    """Return the sum; None if a figure is unknown."""
    figures = [term(line) for line in lines]
    known = [figure for figure in figures if figure is not None]
    return sum(known) if len(known) == len(figures) else None
