"""The parsers that need a schema: Avro and protobuf. What is in its file is part of the config."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from waybill.config.embedded_file import EmbeddedFile, IsEmbeddedFile
from waybill.config.enums import AvroFraming, ProtobufFraming
from waybill.config.event_time import EventTime, FieldPath
from waybill.config.model import Section, misfit
from waybill.config.schemas import AvroSchema, find_message, missing_field, read_avro_schema
from waybill.config.services import ConnectionId
from waybill.config.values import Matching

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

__all__ = ["AvroParser", "ProtobufParser", "check_path"]

MESSAGE_TYPE = Matching(
    r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*",
    "the full name of a message type (`package.Type`)",
)


class AvroParser(Section):
    """Messages that are Avro records, by the schema of a file or by those of a schema registry."""

    model_config = ConfigDict(serialize_by_alias=True)

    name: Literal["avro"] = Field(description="The parser.")
    schema_file: Annotated[EmbeddedFile, IsEmbeddedFile("an Avro schema (`.avsc`)")] | None = Field(
        None, alias="schema", description="The schema that all messages were written by. Or `registry`."
    )
    framing: AvroFraming = Field(
        AvroFraming.NONE,
        description="With `schema`: what stands before the datum. `single_object`: C3 01 and the schema's fingerprint.",
    )
    registry: ConnectionId | None = Field(
        None,
        description="Airflow connection (type `http`) of a schema registry. Each message begins with a byte 0 and the "
        "id of its schema, as Confluent's serializers write it. Or `schema`.",
    )
    event_time: EventTime = Field(
        description="The event time. A message without it goes to quarantine. A timestamp (logical type) is taken as "
        "it is, whatever the format."
    )
    message_id: FieldPath | None = Field(
        None,
        description="Field path of the producer's message id. Without one, or where a message has none, the id is "
        "`<topic>/<partition>@<offset>`.",
    )

    @model_validator(mode="after")
    def _check_schema(self) -> Self:
        if (self.schema_file is None) == (self.registry is None):
            raise misfit("name", "needs either a schema (a file) or a registry (a connection): give one of them")
        if self.schema_file is None and self.framing is not AvroFraming.NONE:
            raise misfit("framing", "means nothing with a registry, whose messages begin with a schema's id")
        _check_paths(self.event_time, self.message_id, self.missing_field)
        return self

    def missing_field(self, path: FieldPath) -> list[str] | None:
        """None if a message can have a field at `path`, or nobody can tell; else those where it goes astray."""
        schema = self.avro_schema()
        return None if schema is None else schema.missing_field(path)

    def avro_schema(self) -> AvroSchema | None:
        """The schema of the file, if there is one."""
        if self.schema_file is None:
            return None
        try:
            return read_avro_schema(self.schema_file.content.decode())
        except UnicodeDecodeError:
            raise misfit("schema", "is not UTF-8 text") from None
        except ValueError as error:
            raise misfit("schema", str(error)) from None


class ProtobufParser(Section):
    """Messages that are protobuf messages of one type."""

    name: Literal["protobuf"] = Field(description="The parser.")
    descriptor_set: Annotated[EmbeddedFile, IsEmbeddedFile("a descriptor set")] = Field(
        description="What `protoc --include_imports --descriptor_set_out=FILE` has written."
    )
    message: Annotated[str, MESSAGE_TYPE] = Field(description="The messages' type, with its package.")
    framing: ProtobufFraming = Field(
        ProtobufFraming.NONE,
        description="What stands before the message. `confluent`: a byte 0, a schema's id, and which message of that "
        "schema's file it is.",
    )
    event_time: EventTime = Field(
        description="The event time. A message without it goes to quarantine. A `google.protobuf.Timestamp` is taken "
        "as it is, whatever the format."
    )
    message_id: FieldPath | None = Field(
        None,
        description="Field path of the producer's message id. Without one, or where a message has none, the id is "
        "`<topic>/<partition>@<offset>`.",
    )

    @model_validator(mode="after")
    def _check_message(self) -> Self:
        _check_paths(self.event_time, self.message_id, self.missing_field)
        return self

    def missing_field(self, path: FieldPath) -> list[str] | None:
        """None if a message can have a field at `path`; else those where it goes astray."""
        return missing_field(self.message_type(), path)

    def message_type(self) -> Descriptor:
        """The messages' type."""
        try:
            return find_message(self.descriptor_set.content, self.message)
        except ValueError as error:
            raise misfit("descriptor_set", str(error)) from None
        except KeyError as error:
            raise misfit("message", f"is not in {self.descriptor_set.path}; there are: {error.args[0]}") from None


def check_path(at: tuple[str, ...], path: FieldPath, missing: Callable[[FieldPath], list[str] | None]) -> None:
    """A path must lead to a field of the schema. `missing`: None, or the fields that there are where it goes astray."""
    there = missing(path)
    if there is not None:
        raise misfit(at, f"is not in the schema; where it goes astray there are: {', '.join(there) or 'no fields'}")


def _check_paths(
    event_time: EventTime, message_id: FieldPath | None, missing: Callable[[FieldPath], list[str] | None]
) -> None:
    check_path(("event_time", "field"), event_time.field, missing)
    if message_id is not None:
        check_path(("message_id",), message_id, missing)
