"""What the scripts of `spark_jobs/` share: their options, their log, how they say that they failed, and their end."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from waybill.errors import WaybillError

__all__ = ["end_process", "job_parser", "log_failure", "set_up_log", "write_report"]


def job_parser(description: str, figures: str) -> argparse.ArgumentParser:
    """A parser that has `--stream`, `--config` and `--report`; `figures`: what the report holds."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--stream", required=True, help="its name in the config")
    parser.add_argument(
        "--config", type=Path, help="the YAML; default: WAYBILL_CONFIG, else include/config/streams.yaml"
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help=f"write {figures} to FILE, as JSON")
    return parser


def set_up_log() -> None:
    """Log to standard error, of libraries only what is wrong."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    for library in ("py4j", "pyiceberg", "kazoo"):
        logging.getLogger(library).setLevel(logging.WARNING)


def log_failure(log: logging.Logger, job: str, stream: str, error: WaybillError) -> None:
    """Say why a job ends, and whether running it again may help."""
    again = " (running again may succeed)" if error.retriable else ""
    log.error("%s %s: %s: %s%s", job, stream, type(error).__name__, error, again)


def write_report(path: Path | None, document: Any) -> None:
    """Write a report's JSON document, if it is asked for."""
    if path:
        path.write_text(json.dumps(document, indent=2) + "\n")


def end_process(code: int) -> NoReturn:
    """End without taking the interpreter apart: that takes most of a second, and the JVM waits for it."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
