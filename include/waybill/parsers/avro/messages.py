"""The parser `avro`: bare Avro data, single objects, or messages in the wire format of a schema registry.

A message must be valid to its last byte, whichever of its fields are read, without bytes left over. A message goes to
quarantine for a boolean other than 0 or 1, a negative index of a union or an enum, a length beyond the message, text
that is not UTF-8, or more work than the limits of the config allow. A schema that cannot be read for any reason affects
only its own messages. A schema registry that does not answer stops the run before a commit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from waybill.base.errors import ConfigError, UnexpectedFailure
from waybill.config.connections import RegistryEndpoint, find_connection
from waybill.config.models import AvroFraming, AvroParser, Column, FieldPath
from waybill.config.models.avro_schemas import AvroSchema, read_avro_schema
from waybill.config.models.schema_parsers import AvroLimits
from waybill.parsers.avro.reader import Document, SchemaReader
from waybill.parsers.confluent_framing import CONFLUENT_BYTES, MessageBuffer, framing_error, message_buffer, schema_ids
from waybill.parsers.documents import DocumentFormat, DocumentReader, UnreadableMessage
from waybill.parsers.protocol import Parsed, Reason
from waybill.records.batches._kernels import Array
from waybill.services.clients.registry import MAX_SCHEMA_ID, SchemaRegistry, UnusableSchema

logger = logging.getLogger(__name__)

_SINGLE_OBJECT = b"\xc3\x01"

_Read = Callable[[MessageBuffer], list[Document]]


class AvroMessages:
    """The parser `avro`: event time, message id and columns are found by field path."""

    name = "avro"

    def __init__(self, config: AvroParser, columns: Mapping[str, Column] = MappingProxyType({})) -> None:
        """Raise `ConnectionMissing` or `ConfigError` if the registry's connection cannot be used."""
        paths = [config.event_time.field, *([config.message_id] if config.message_id else [])]
        paths += [column.path(name) for name, column in columns.items()]
        self._read = _reader(config, paths)
        self._reader = DocumentReader(config.event_time, config.message_id, _AVRO, columns)

    def parse(self, messages: pa.RecordBatch) -> Parsed:
        """See `Parser.parse`. Raise `RegistryUnavailable` or `RegistryRefused` if the registry gives no schema."""
        return self._reader.read(self._read(message_buffer(messages.column("value"))))


def _reader(config: AvroParser, paths: Sequence[FieldPath]) -> _Read:
    if config.registry is not None:
        registry = SchemaRegistry(RegistryEndpoint.of(find_connection(config.registry)))
        return _ByRegistry(registry, paths, config.limits).read
    schema = config.avro_schema()
    assert schema is not None
    assert config.schema_file is not None
    try:
        reader = SchemaReader(schema, paths, config.limits)
    except ValueError as error:
        raise ConfigError(f"{config.schema_file.path} {error}") from None
    if config.framing is AvroFraming.SINGLE_OBJECT:
        return _SingleObjects(schema, config.schema_file.path, reader).read
    return reader.read


class _SingleObjects:
    """Reads messages that begin with C3 01 and the fingerprint of their schema."""

    def __init__(self, schema: AvroSchema, path: str, reader: SchemaReader) -> None:
        self._prefix = _SINGLE_OBJECT + schema.fingerprint()
        self._path = path
        self._schema_reader = reader

    def read(self, values: MessageBuffer) -> list[Document]:
        matching = values.starts_with(self._prefix)
        documents = self._schema_reader.read(values.select(np.flatnonzero(matching), len(self._prefix)))
        return _interleave(matching, documents, lambda row: self._error(values, row))

    def _error(self, values: MessageBuffer, row: int) -> UnreadableMessage:
        start, end = values.starts[row], values.ends[row]
        head = values.data[start : min(end, start + len(self._prefix))].tobytes()
        if len(head) < len(self._prefix) or not head.startswith(_SINGLE_OBJECT):
            return UnreadableMessage(
                Reason.NOT_AVRO, f"is not a single object: it starts with {head.hex(' ') or 'nothing'}"
            )
        fingerprint = head[len(_SINGLE_OBJECT) :][::-1].hex()
        return UnreadableMessage(Reason.SCHEMA_UNKNOWN, f"{self._path} does not have the fingerprint {fingerprint}")


class _ByRegistry:
    """Reads messages that begin with the id of a schema in a registry. It keeps a reader for each id."""

    def __init__(self, registry: SchemaRegistry, paths: Sequence[FieldPath], limits: AvroLimits) -> None:
        self._registry = registry
        self._paths = paths
        self._limits = limits
        self._readers: dict[int, SchemaReader | UnreadableMessage] = {}

    def read(self, values: MessageBuffer) -> list[Document]:
        documents: list[Document] = [{}] * len(values.starts)
        unreadable_ids = 0
        with self._registry.connected():
            for schema_id, rows in _rows_by_id(schema_ids(values)):
                found: Sequence[Document]
                if schema_id < 0:
                    found = [framing_error(values, row, Reason.NOT_AVRO) for row in rows.tolist()]
                else:
                    reader = self._reader(schema_id, unreadable_ids)
                    unreadable_ids += isinstance(reader, UnreadableMessage) and schema_id <= MAX_SCHEMA_ID
                    if isinstance(reader, SchemaReader):
                        found = reader.read(values.select(rows, CONFLUENT_BYTES))
                    else:
                        found = [reader] * len(rows)
                for row, document in zip(rows.tolist(), found, strict=True):
                    documents[row] = document
        return documents

    def _reader(self, schema_id: int, unreadable_ids: int) -> SchemaReader | UnreadableMessage:
        """Return the reader of a schema, or why there is none. `unreadable_ids`: the number without one before it."""
        reader = self._readers.get(schema_id)
        if reader is not None:
            return reader
        if unreadable_ids >= self._limits.max_unknown_ids and schema_id <= MAX_SCHEMA_ID:
            # A request takes a millisecond or more, and a message of five bytes can cause one.
            return UnreadableMessage(
                Reason.SCHEMA_UNKNOWN,
                f"the id {schema_id} was not looked up, since {unreadable_ids:,} ids with as many messages have no "
                f"usable schema in the registry: see parser.limits.max_unknown_ids",
            )
        reader = self._readers[schema_id] = self._find(schema_id)
        return reader

    def _find(self, schema_id: int) -> SchemaReader | UnreadableMessage:
        found = self._registry.find(schema_id)
        if found is None:
            return UnreadableMessage(Reason.SCHEMA_UNKNOWN, f"the registry has no schema with the id {schema_id}")
        if isinstance(found, UnusableSchema):
            return _unusable(schema_id, found.reason)
        if found.kind != "AVRO":
            return _unusable(schema_id, f"is {found.kind}, not AVRO")
        try:
            schema = read_avro_schema(found.text, found.referenced)
            return SchemaReader(schema, [*self._paths, *_other_case(schema, self._paths[0])], self._limits)
        except ValueError as error:
            return _unusable(schema_id, str(error))
        except Exception as error:
            # A schema that Waybill cannot read for any reason must not stop the messages of other schemas.
            logger.exception("the schema with the id %d cannot be read", schema_id)
            failure = UnexpectedFailure(f"schema {schema_id}", error)
            return _unusable(schema_id, f"cannot be read: {failure.kind} at {failure.place}: {error}")


def _other_case(schema: AvroSchema, path: FieldPath) -> list[FieldPath]:
    """Return the field whose name differs from the missing one only in case, if a schema has it.

    It is read as well, so that the reason of a message without event time can name it (`parsers.documents`).
    """
    for number, name in enumerate(path):
        names = schema.missing_field(path[: number + 1])
        if names is not None:
            found = [each for each in names if each.casefold() == name.casefold()]
            return [(*path[:number], found[0])] if found else []
    return []


def _unusable(schema_id: int, detail: str) -> UnreadableMessage:
    return UnreadableMessage(Reason.SCHEMA_UNUSABLE, f"the schema with the id {schema_id} {detail}")


def _rows_by_id(ids: Array) -> Iterator[tuple[int, Array]]:
    """Yield each id with the rows of its messages: ids of more messages first, then in the order of the messages.

    The order decides which ids are not looked up, and which schema proves that a server is a registry.
    """
    found, firsts, inverse, counts = np.unique(ids, return_index=True, return_inverse=True, return_counts=True)
    rows = np.argsort(inverse, kind="stable")
    ends = np.cumsum(counts)
    for number in np.lexsort((firsts, -counts)).tolist():
        yield int(found[number]), rows[ends[number] - counts[number] : ends[number]]


def _interleave(
    matching: Array, documents: list[Document], error_of: Callable[[int], UnreadableMessage]
) -> list[Document]:
    """Return one document per row: the next of `documents` for a matching row, else `error_of(row)`."""
    if len(documents) == len(matching):
        return documents
    rest = iter(documents)
    return [next(rest) if is_matching else error_of(row) for row, is_matching in enumerate(matching.tolist())]


def _checked(document: Document) -> dict[str, object]:
    if isinstance(document, UnreadableMessage):
        raise document
    return document


_AVRO = DocumentFormat(_checked, (), Reason.NOT_AVRO, Reason.NOT_A_MAP)
