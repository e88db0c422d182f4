"""The parsers that need a schema: Avro and Protobuf. The content of the schema's file is part of the config."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from waybill.config.models.avro_schemas import AvroSchema, read_avro_schema
from waybill.config.models.base import EmbeddedFile, IsEmbeddedFile, Matching, Section, section_error
from waybill.config.models.columns import EventTime, FieldPath
from waybill.config.models.enums import AvroFraming, ProtobufFraming
from waybill.config.models.quantities import WholeNumberBetween
from waybill.config.models.schemas import find_message, missing_field
from waybill.config.models.services import ConnectionId

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

MESSAGE_TYPE = Matching(
    r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*",
    "the full name of a message type (`package.Type`)",
)


class AvroLimits(Section):
    """Limits that bound the work for a message by its size. The reason in the quarantine names the one that is met."""

    max_depth: Annotated[int, WholeNumberBetween(1, 1_000)] = Field(
        500, description="The most records, arrays and maps that may be nested in each other in a message."
    )
    max_steps_per_byte: Annotated[int, WholeNumberBetween(1, 10_000)] = Field(
        16,
        description="The most values, records, arrays and maps for each byte of a message, beyond the first 4,096. "
        "Only a schema with many values that have no bytes (nulls, empty records) needs more than 3.",
    )
    max_empty_items: Annotated[int, WholeNumberBetween(0, 1_000_000)] = Field(
        1_024, description="The most items that have no bytes (nulls, empty records) in all arrays of a message."
    )
    max_unknown_ids: Annotated[int, WholeNumberBetween(1, 10_000)] = Field(
        100,
        description="With `registry`: the most schema ids of one batch of messages that the registry is asked for in "
        "vain. Ids of fewer messages are not looked up then.",
    )


class AvroParser(Section):
    """Messages that are Avro records, written with the schema in a file or with the schemas of a schema registry."""

    model_config = ConfigDict(serialize_by_alias=True)

    name: Literal["avro"] = Field(description="The parser.")
    schema_file: Annotated[EmbeddedFile, IsEmbeddedFile("an Avro schema (`.avsc`)")] | None = Field(
        None, alias="schema", description="The schema that all messages were written with. Or set `registry`."
    )
    framing: AvroFraming = Field(
        AvroFraming.NONE,
        description="With `schema`: the bytes before the datum. `single_object`: C3 01 and the schema's fingerprint.",
    )
    registry: ConnectionId | None = Field(
        None,
        description="Airflow connection (type `http`) of a schema registry. Each message begins with a byte 0 and the "
        "id of its schema, as Confluent's serializers write it. Or set `schema`.",
    )
    event_time: EventTime = Field(
        description="The event time. A message without it goes to quarantine. A timestamp (logical type) is read as "
        "it is, whatever the format."
    )
    message_id: FieldPath | None = Field(
        None,
        description="Field path of the producer's message id. Without this key, or for a message without an id, the "
        "id is `<topic>/<partition>@<offset>`.",
    )
    limits: AvroLimits = Field(AvroLimits(), description="How much work one message, or one batch, may cause.")

    @model_validator(mode="after")
    def _check_schema(self) -> Self:
        if (self.schema_file is None) == (self.registry is None):
            raise section_error("name", "needs either a schema (a file) or a registry (a connection): set one of them")
        if self.schema_file is None and self.framing is not AvroFraming.NONE:
            raise section_error("framing", "has no effect with a registry, whose messages begin with a schema id")
        _check_paths(self.event_time, self.message_id, self.missing_field)
        return self

    def missing_field(self, path: FieldPath) -> list[str] | None:
        """Return None if a message can have a field at `path`, or if the schema is in a registry.

        Else return the names of the fields at the first place where `path` leaves the schema.
        """
        schema = self.avro_schema()
        return None if schema is None else schema.missing_field(path)

    def avro_schema(self) -> AvroSchema | None:
        """Return the schema in the file; None if the schemas are in a registry."""
        if self.schema_file is None:
            return None
        try:
            return read_avro_schema(self.schema_file.content.decode())
        except UnicodeDecodeError:
            raise section_error("schema", "is not UTF-8 text") from None
        except ValueError as error:
            raise section_error("schema", str(error)) from None


class ProtobufParser(Section):
    """Messages that are Protobuf messages of one type."""

    name: Literal["protobuf"] = Field(description="The parser.")
    descriptor_set: Annotated[EmbeddedFile, IsEmbeddedFile("a descriptor set")] = Field(
        description="The file that `protoc --include_imports --descriptor_set_out=FILE` has written."
    )
    message: Annotated[str, MESSAGE_TYPE] = Field(description="The type of the messages, with its package.")
    framing: ProtobufFraming = Field(
        ProtobufFraming.NONE,
        description="The bytes before the message. `confluent`: a byte 0, the id of a schema, and the index of the "
        "message type in the schema's file.",
    )
    event_time: EventTime = Field(
        description="The event time. A message without it goes to quarantine. A `google.protobuf.Timestamp` is read "
        "as it is, whatever the format."
    )
    message_id: FieldPath | None = Field(
        None,
        description="Field path of the producer's message id. Without this key, or for a message without an id, the "
        "id is `<topic>/<partition>@<offset>`.",
    )

    @model_validator(mode="after")
    def _check_message(self) -> Self:
        _check_paths(self.event_time, self.message_id, self.missing_field)
        return self

    def missing_field(self, path: FieldPath) -> list[str] | None:
        """Return None if a message can have a field at `path`.

        Else return the names of the fields at the first place where `path` leaves the schema.
        """
        return missing_field(self.message_type(), path)

    def message_type(self) -> Descriptor:
        """Return the type of the messages."""
        try:
            return find_message(self.descriptor_set.content, self.message)
        except ValueError as error:
            raise section_error("descriptor_set", str(error)) from None
        except KeyError as error:
            raise section_error(
                "message", f"is not in {self.descriptor_set.path}, which has: {error.args[0]}"
            ) from None


def check_path(at: tuple[str, ...], path: FieldPath, missing: Callable[[FieldPath], list[str] | None]) -> None:
    """Raise an error at the key `at` unless `path` leads to a field of the schema.

    `missing` returns None for a field of the schema, else the names of the fields where the path leaves the schema.
    """
    known = missing(path)
    if known is not None:
        raise section_error(at, f"is not in the schema; the fields at that level are: {', '.join(known) or 'none'}")


def _check_paths(
    event_time: EventTime, message_id: FieldPath | None, missing: Callable[[FieldPath], list[str] | None]
) -> None:
    check_path(("event_time", "field"), event_time.field, missing)
    if message_id is not None:
        check_path(("message_id",), message_id, missing)
