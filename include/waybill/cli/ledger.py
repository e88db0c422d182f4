"""`waybill ledger`: print the balance of a stream, sign it, and check a signed one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import typer

from waybill.cli.render import Column, count, print_json, print_table
from waybill.cli.targets import load_streams, open_coordinator
from waybill.config import Config
from waybill.config.quantities import counted
from waybill.connections import KafkaEndpoint, find_connection
from waybill.errors import ConfigError, ConnectionMissing, KafkaUnavailable
from waybill.ledger import Ledger, Line, ReadLogEnds, read_ledger
from waybill.ledger.signature import (
    CheckResult,
    check_signed,
    public_key_of,
    read_public_key,
    read_signing_key,
    sign,
)
from waybill.names import TopicPartition
from waybill.staging.services import services_of

__all__ = ["print_ledger", "run", "run_check"]

_KAFKA_TIMEOUT = timedelta(seconds=5)

_Terms = Sequence[tuple[str, Callable[[Line], int | None]]]

_WORDS = {
    CheckResult.VALID: "valid: signed with this key, and not changed since",
    CheckResult.UNCHANGED: "not changed since it was signed with the key {key}; give --public-key to compare that key",
    CheckResult.CHANGED: "CHANGED: the content is not what was signed",
    CheckResult.WRONG_KEY: "WRONG KEY: signed with the key {key}, which is not the given one",
    CheckResult.UNSIGNED: "UNSIGNED: the file has no signature",
}


def run(stream: str, *, kafka: bool, read_objects: bool, as_json: bool, sign_with: str | None) -> None:
    """Print the ledger of a stream, and exit with 1 if it does not balance. See `waybill ledger --help`."""
    key = None if sign_with is None else read_signing_key(find_connection(sign_with))
    ledger = _read(stream, kafka=kafka, read_objects=read_objects)
    if key is not None:
        print_json(sign(ledger.document(), key))
    elif as_json:
        print_json(ledger.document())
    else:
        print_ledger(ledger)
    if ledger.imbalances:
        raise typer.Exit(1)


def _read(stream: str, *, kafka: bool, read_objects: bool) -> Ledger:
    config = load_streams()
    config.stream(stream)
    with services_of(config) as services, open_coordinator(config, stream) as coordinator:
        return read_ledger(
            config,
            stream,
            services,
            coordinator.list_committed,
            _log_ends_of(config, stream) if kafka else _without_kafka,
            read_objects=read_objects,
        )


def run_check(file: Path, public_key: str | None) -> None:
    """Print whether a signed ledger is what was signed, and exit with 1 if it is not."""
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
    if result not in (CheckResult.VALID, CheckResult.UNCHANGED):
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
        from waybill.sources.kafka import KafkaSource

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
    """Print a table for each equation, then accepted gaps, notes, and what does not balance."""
    _print_terms(ledger.lines, _log_terms(ledger.lines))
    if any(line.messages is not None for line in ledger.lines):
        typer.echo()
        _print_terms([line for line in ledger.lines if line.messages is not None], _MESSAGE_TERMS)
    if any(line.rows is not None for line in ledger.lines):
        typer.echo()
        _print_terms([line for line in ledger.lines if line.rows is not None], _ROW_TERMS)
    typer.echo()
    for line in ledger.lines:
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
        known = all(line.log.messages is not None for line in ledger.lines)
        typer.echo("balanced" if known else "balanced, as far as it is known: see the notes")


def _log_terms(lines: Sequence[Line]) -> _Terms:
    """Return the columns of the first equation: those that can be other than 0, and the main ones."""
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
    """Return a term that is not known if the messages are not."""
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


def _print_terms(lines: Sequence[Line], terms: _Terms) -> None:
    """Print a table with a row for each line, and one with the sums."""
    rows = [[str(line.tp), *(count(term(line)) for _, term in terms)] for line in lines]
    if len(lines) > 1:
        rows.append(["total", *(count(_sum(term, lines)) for _, term in terms)])
    print_table([Column("topic-partition"), *(Column(title, figure=True) for title, _ in terms)], rows)


def _sum(term: Callable[[Line], int | None], lines: Sequence[Line]) -> int | None:
    """Return the sum; None if a figure is not known."""
    figures = [term(line) for line in lines]
    known = [figure for figure in figures if figure is not None]
    return sum(known) if len(known) == len(figures) else None
