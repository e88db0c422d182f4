"""The config: one YAML, its models, and how it is loaded and checked."""

from waybill.config.enums import EventTimeFormat, IsolationLevel, PartitionBy, StartPosition
from waybill.config.load import CONFIG_VARIABLE, config_path, load_config
from waybill.config.models import (
    Config,
    DelimitedParser,
    EventTime,
    FieldPath,
    JsonParser,
    MsgpackParser,
    ParserConfig,
    PythonParser,
    RawParser,
    RegexParser,
    Storage,
    Stream,
    TopicRegex,
    UploadPolicy,
)

__all__ = [
    "CONFIG_VARIABLE",
    "Config",
    "DelimitedParser",
    "EventTime",
    "EventTimeFormat",
    "FieldPath",
    "IsolationLevel",
    "JsonParser",
    "MsgpackParser",
    "ParserConfig",
    "PartitionBy",
    "PythonParser",
    "RawParser",
    "RegexParser",
    "StartPosition",
    "Storage",
    "Stream",
    "TopicRegex",
    "UploadPolicy",
    "config_path",
    "load_config",
]
