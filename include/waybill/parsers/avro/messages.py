"""The parser `avro`: bare Avro data, single objects, or messages in the wire format of a schema registry.

A message must be valid to its last byte, whichever of its fields are read, without bytes left over. A message goes to
quarantine for a boolean other than 0 or 1, a negative index of a union or an enum, a length beyond the message, text
that is not UTF-8, or more than 500 nested records, arrays and maps. A schema registry that does not answer stops the
run before a commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from waybill.clients.registry import RegisteredSchema, SchemaRegistry
from waybill.config import AvroFraming, AvroParser, Column, FieldPath
from waybill.config.schemas import AvroSchema, read_avro_schema
from waybill.connections import RegistryEndpoint, find_connection
from waybill.parsers.avro.reader import Document, SchemaReader
from waybill.parsers.confluent_framing import CONFLUENT_BYTES, MessageBuffer, framing_error, message_buffer, schema_ids
from waybill.parsers.documents import DocumentFormat, DocumentReader, UnreadableMessage
from waybill.parsers.protocol import Parsed, Reason
from waybill.records._kernels import Array

__all__ = ["AvroMessages"]

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
        return _ByRegistry(SchemaRegistry(RegistryEndpoint.of(find_connection(config.registry))), paths).read
    schema = config.avro_schema()
    assert schema is not None
    assert config.schema_file is not None
    if config.framing is AvroFraming.SINGLE_OBJECT:
        return _SingleObjects(schema, config.schema_file.path, paths).read
    return SchemaReader(schema, paths).read


class _SingleObjects:
    """Reads messages that begin with C3 01 and the fingerprint of their schema."""

    def __init__(self, schema: AvroSchema, path: str, paths: Sequence[FieldPath]) -> None:
        self._prefix = _SINGLE_OBJECT + schema.fingerprint()
        self._path = path
        self._schema_reader = SchemaReader(schema, paths)

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

    def __init__(self, registry: SchemaRegistry, paths: Sequence[FieldPath]) -> None:
        self._registry = registry
        self._paths = paths
        self._readers: dict[int, SchemaReader | UnreadableMessage] = {}

    def read(self, values: MessageBuffer) -> list[Document]:
        ids = schema_ids(values)
        documents: list[Document] = [{} for _ in ids]
        for schema_id in np.unique(ids).tolist():
            rows = np.flatnonzero(ids == schema_id)
            found: Sequence[Document]
            if schema_id < 0:
                found = [framing_error(values, row, Reason.NOT_AVRO) for row in rows.tolist()]
            else:
                found = self._read_by(schema_id, values, rows)
            for row, document in zip(rows, found, strict=True):
                documents[row] = document
        return documents

    def _read_by(self, schema_id: int, values: MessageBuffer, rows: Array) -> list[Document]:
        reader = self._readers.get(schema_id)
        if reader is None:
            reader = self._readers[schema_id] = self._find(schema_id)
        if isinstance(reader, UnreadableMessage):
            return [reader] * len(rows)
        return reader.read(values.select(rows, CONFLUENT_BYTES))

    def _find(self, schema_id: int) -> SchemaReader | UnreadableMessage:
        found = self._registry.find(schema_id)
        if found is None:
            return UnreadableMessage(Reason.SCHEMA_UNKNOWN, f"the registry has no schema with the id {schema_id}")
        if found.kind != "AVRO":
            return UnreadableMessage(
                Reason.SCHEMA_UNUSABLE, f"the schema with the id {schema_id} is {found.kind}, not AVRO"
            )
        try:
            return SchemaReader(read_avro_schema(found.text, list(_texts_below(found))), self._paths)
        except ValueError as error:
            return UnreadableMessage(Reason.SCHEMA_UNUSABLE, f"the schema with the id {schema_id} {error}")


def _texts_below(schema: RegisteredSchema) -> Iterator[str]:
    """Return the texts of the schemas that a schema refers to, each after those that it needs itself."""
    for reference in schema.references:
        if isinstance(reference, str):
            raise ValueError(f"refers to {reference}, which the registry does not have")
        yield from _texts_below(reference)
        yield reference.text


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
