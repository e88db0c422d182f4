"""Messages in Avro: bare, as single objects, or in the wire format of a schema registry.

What is left open elsewhere is settled so: a message must be sound to its last byte, whichever of its fields are wanted,
and none may be left over. A boolean is 0 or 1; a negative index of a union or an enum, a length that does not fit, text
that is not UTF-8, more than 500 records, arrays and maps within each other are refused. None of these stops a run: the
message goes to quarantine. A schema registry that does not answer does stop it, with nothing committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from waybill.clients.registry import RegisteredSchema, SchemaRegistry
from waybill.config import AvroFraming, AvroParser, Column, FieldPath
from waybill.config.schemas import AvroSchema, read_avro_schema
from waybill.connections import RegistryEndpoint, connection
from waybill.parsers.avro.reader import Document, SchemaReader
from waybill.parsers.confluent_framing import CONFLUENT_BYTES, Values, not_confluent, schema_ids, values_of
from waybill.parsers.documents import Decoding, DocumentReader, Unreadable
from waybill.parsers.protocol import Parsed, Reason
from waybill.records._kernels import Array

__all__ = ["AvroMessages"]

_SINGLE_OBJECT = b"\xc3\x01"

_Read = Callable[[Values], list[Document]]


class AvroMessages:
    """The parser `avro`: event time, message id and columns by field path."""

    name = "avro"

    def __init__(self, config: AvroParser, columns: Mapping[str, Column] = MappingProxyType({})) -> None:
        """Raises `ConnectionMissing` or `ConfigError` when the registry's connection cannot be used."""
        wanted = [config.event_time.field, *([config.message_id] if config.message_id else [])]
        wanted += [column.path(name) for name, column in columns.items()]
        self._read = _reader(config, wanted)
        self._reader = DocumentReader(config.event_time, config.message_id, _AVRO, columns)

    def parse(self, messages: pa.RecordBatch) -> Parsed:
        """See `Parser.parse`. Raises `RegistryUnavailable` and `RegistryRefused`."""
        return self._reader.read(self._read(values_of(messages.column("value"))))


def _reader(config: AvroParser, wanted: Sequence[FieldPath]) -> _Read:
    if config.registry is not None:
        return _ByRegistry(SchemaRegistry(RegistryEndpoint.of(connection(config.registry))), wanted).read
    schema = config.avro_schema()
    assert schema is not None
    assert config.schema_file is not None
    if config.framing is AvroFraming.SINGLE_OBJECT:
        return _SingleObjects(schema, config.schema_file.path, wanted).read
    return SchemaReader(schema, wanted).read


class _SingleObjects:
    """Messages that begin with C3 01 and the fingerprint of their schema."""

    def __init__(self, schema: AvroSchema, path: str, wanted: Sequence[FieldPath]) -> None:
        self._prefix = _SINGLE_OBJECT + schema.fingerprint()
        self._path = path
        self._schema_reader = SchemaReader(schema, wanted)

    def read(self, values: Values) -> list[Document]:
        ours = values.begin_with(self._prefix)
        documents = self._schema_reader.read(values.of(np.flatnonzero(ours), len(self._prefix)))
        return _interleaved(ours, documents, lambda row: self._other(values, row))

    def _other(self, values: Values, row: int) -> Unreadable:
        start, end = values.starts[row], values.ends[row]
        head = values.data[start : min(end, start + len(self._prefix))].tobytes()
        if len(head) < len(self._prefix) or not head.startswith(_SINGLE_OBJECT):
            return Unreadable(Reason.NOT_AVRO, f"is no single object: it starts with {head.hex(' ') or 'nothing'}")
        fingerprint = head[len(_SINGLE_OBJECT) :][::-1].hex()
        return Unreadable(Reason.SCHEMA_UNKNOWN, f"{self._path} has not the fingerprint {fingerprint}")


class _ByRegistry:
    """Messages that begin with the id of their schema, which a registry has."""

    def __init__(self, registry: SchemaRegistry, wanted: Sequence[FieldPath]) -> None:
        self._registry = registry
        self._wanted = wanted
        self._readers: dict[int, SchemaReader | Unreadable] = {}

    def read(self, values: Values) -> list[Document]:
        ids = schema_ids(values)
        documents: list[Document] = [{} for _ in ids]
        for schema_id in np.unique(ids).tolist():
            rows = np.flatnonzero(ids == schema_id)
            found = [not_confluent(values, row, Reason.NOT_AVRO) for row in rows.tolist()] if schema_id < 0 else None
            for row, document in zip(rows, found or self._read_by(schema_id, values, rows), strict=True):
                documents[row] = document
        return documents

    def _read_by(self, schema_id: int, values: Values, rows: Array) -> list[Document]:
        reader = self._readers.get(schema_id)
        if reader is None:
            reader = self._readers[schema_id] = self._find(schema_id)
        if isinstance(reader, Unreadable):
            return [reader] * len(rows)
        return reader.read(values.of(rows, CONFLUENT_BYTES))

    def _find(self, schema_id: int) -> SchemaReader | Unreadable:
        found = self._registry.find(schema_id)
        if found is None:
            return Unreadable(Reason.SCHEMA_UNKNOWN, f"the registry has no schema with the id {schema_id}")
        if found.kind != "AVRO":
            return Unreadable(Reason.SCHEMA_UNUSABLE, f"the schema with the id {schema_id} is {found.kind}, not AVRO")
        try:
            return SchemaReader(read_avro_schema(found.text, list(_texts_below(found))), self._wanted)
        except ValueError as error:
            return Unreadable(Reason.SCHEMA_UNUSABLE, f"the schema with the id {schema_id} {error}")


def _texts_below(schema: RegisteredSchema) -> Iterator[str]:
    """The texts of what a schema refers to, each after those that it needs."""
    for reference in schema.references:
        if isinstance(reference, str):
            raise ValueError(f"refers to {reference}, which the registry does not have")
        yield from _texts_below(reference)
        yield reference.text


def _interleaved(ours: Array, documents: list[Document], other: Callable[[int], Unreadable]) -> list[Document]:
    """The documents of the rows that are ours, in order, and something else for the others."""
    if len(documents) == len(ours):
        return documents
    rest = iter(documents)
    return [next(rest) if is_ours else other(row) for row, is_ours in enumerate(ours.tolist())]


def _same(document: Document) -> dict[str, object]:
    if isinstance(document, Unreadable):
        raise document
    return document


_AVRO = Decoding(_same, (), Reason.NOT_AVRO, Reason.NOT_A_MAP)
