"""Logging of the Java servers: to standard output, which the guardian sends to the server's log file."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["write_log4j_config"]

_CONFIG = """\
status = warn
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{yyyy-MM-dd HH:mm:ss,SSS} %-5p %c{1}: %m%n
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
"""


def write_log4j_config(directory: Path) -> Path:
    """Write the configuration into `directory`. Returns its path."""
    path = directory / "log4j2.properties"
    path.write_text(_CONFIG)
    return path
