"""The config: its models, and how the YAML file is loaded and checked."""

from waybill.config.models.archiving import Format, UploadPolicy
from waybill.config.models.columns import OWN_COLUMNS, Column, ColumnKind, Columns, ColumnType, EventTime, FieldPath
from waybill.config.models.dedup import Dedup
from waybill.config.models.enums import (
    AvroFraming,
    EventTimeFormat,
    IsolationLevel,
    Keep,
    KeyPartitioner,
    ProtobufFraming,
    StartPosition,
    TimeUnit,
    WrongType,
)
from waybill.config.models.load import CONFIG_VARIABLE, config_path, load_config, load_valid_streams
from waybill.config.models.parsing import (
    DelimitedParser,
    EventTimeBounds,
    JsonParser,
    MsgpackParser,
    ParserConfig,
    ParseSettings,
    PythonParser,
    RawParser,
    RegexParser,
)
from waybill.config.models.partition_by import ColumnTransform, Maintenance, PartitionBy, TransformKind
from waybill.config.models.root import Config
from waybill.config.models.schema_parsers import AvroParser, ProtobufParser
from waybill.config.models.services import Storage
from waybill.config.models.stream import Stream, TopicRegex

__all__ = [
    "CONFIG_VARIABLE",
    "OWN_COLUMNS",
    "AvroFraming",
    "AvroParser",
    "Column",
    "ColumnKind",
    "ColumnTransform",
    "ColumnType",
    "Columns",
    "Config",
    "Dedup",
    "DelimitedParser",
    "EventTime",
    "EventTimeBounds",
    "EventTimeFormat",
    "FieldPath",
    "Format",
    "IsolationLevel",
    "JsonParser",
    "Keep",
    "KeyPartitioner",
    "Maintenance",
    "MsgpackParser",
    "ParseSettings",
    "ParserConfig",
    "PartitionBy",
    "ProtobufFraming",
    "ProtobufParser",
    "PythonParser",
    "RawParser",
    "RegexParser",
    "StartPosition",
    "Storage",
    "Stream",
    "TimeUnit",
    "TopicRegex",
    "TransformKind",
    "UploadPolicy",
    "WrongType",
    "config_path",
    "load_config",
    "load_valid_streams",
]
