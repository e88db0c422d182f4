"""Shared code of the scripts in `spark_jobs/`: options, logging, reports, exit, and the environment of `spark-submit`.

This module does not import pyspark: Airflow imports it to submit the jobs.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import logging
import os
import re
import signal
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NoReturn

from waybill.base.errors import WaybillError

current_stream: ContextVar[str] = ContextVar("current_stream", default="")
"""The stream that this thread works on, for log lines; '' in an application of one stream."""

BRIEF_JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Compile quickly, and collect garbage in one thread."""

_JVM_OPTIONS_VARIABLE = "JDK_JAVA_OPTIONS"
_ALLOCATOR_OPTIONS = {"MIMALLOC_PURGE_DELAY": "-1", "MIMALLOC_ALLOW_LARGE_OS_PAGES": "1"}
_LOCAL_THREADS = re.compile(r"local\[([0-9]+|\*)(?:,[0-9]+)?\]")
_GATEWAY_VARIABLE = "PYSPARK_GATEWAY_PORT"
"""`spark-submit` sets it in the driver's environment."""
_PR_SET_PDEATHSIG = 1


# --- the environment of spark-submit ----------------------------------------------------------------------------------

# Environment variables, not settings of Spark: options that the Spark connection or spark-defaults.conf set still win.
# Executors of a cluster have separate environments, which this does not change.


def with_brief_jvm(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with `BRIEF_JVM_OPTIONS`, in a variable that Java reads before its command line.

    For jobs whose messages never pass through the JVM. Such a JVM starts, schedules tasks and ends: without these
    options it spends much CPU on compiling code that runs only shortly, and on parallel garbage collection. Measured in
    docs/decisions/0011.
    """
    options = environment.get(_JVM_OPTIONS_VARIABLE, "")
    if BRIEF_JVM_OPTIONS in options:
        return dict(environment)
    return {**environment, _JVM_OPTIONS_VARIABLE: f"{BRIEF_JVM_OPTIONS} {options}".rstrip()}


def with_kept_memory(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment, in which Arrow's allocator keeps freed memory and asks for transparent huge pages.

    By default the allocator returns memory to the kernel after each batch, and the kernel fills it with zeros before
    the next one, in pages of 4 KiB. A partition run and a sweep take a tenth less CPU without that, and up to a quarter
    more memory (docs/decisions/0011 and 0015). Variables that the environment sets win. They must be set before Arrow
    is loaded.
    """
    return {**_ALLOCATOR_OPTIONS, **environment}


def local_slots(master: str) -> int | None:
    """Return how many tasks run in parallel on a local master such as `local[2]`; None for a cluster."""
    local = _LOCAL_THREADS.fullmatch(master)
    if local is None:
        return None
    return os.cpu_count() or 1 if local[1] == "*" else int(local[1])


# --- the scripts ------------------------------------------------------------------------------------------------------


def job_parser(description: str, figures: str) -> argparse.ArgumentParser:
    """Return a parser with the options that choose streams and the places of the results.

    `figures`: what the report contains.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--stream", action="append", default=[], dest="streams", metavar="STREAM", help="its name in the config"
    )
    parser.add_argument(
        "--group",
        help="all streams of this group, or those of --stream; the job then does what other tasks do for a "
        "stream with a DAG of its own",
    )
    parser.add_argument(
        "--parallel",
        type=int,
        metavar="N",
        help="work on so many streams at a time; default: 4, or what the config has for the group",
    )
    parser.add_argument(
        "--config", type=Path, help="the YAML file; default: WAYBILL_CONFIG, else include/config/streams.yaml"
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help=f"write {figures} to FILE, as JSON")
    parser.add_argument(
        "--run",
        metavar="ID",
        help="with --group: write the result of each stream to S3, for the DAG run of this id; "
        "exit code 1 then means that a retry may help",
    )
    parser.add_argument(
        "--resume", action="store_true", help="with --run: leave out streams that an earlier try of the run has done"
    )
    return parser


def end_with_spark_submit() -> None:
    """Let the kernel kill this driver when the process that runs it for `spark-submit` ends for any reason.

    Airflow kills `spark-submit` when a task is cleared, or runs into its timeout. The driver would go on until it next
    needs the JVM, and a driver that hangs would go on for ever. Does nothing outside of `spark-submit`, or of Linux.
    """
    if _GATEWAY_VARIABLE in os.environ and sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the process ended before the call
            os._exit(1)


def jvm_cpu_seconds() -> float:
    """Return the CPU seconds of the JVM that runs this driver for `spark-submit`; 0 outside of it, or of Linux."""
    if _GATEWAY_VARIABLE not in os.environ or sys.platform != "linux":
        return 0.0
    try:
        fields = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def configure_logging() -> None:
    """Log to standard error; for some libraries, only warnings and errors."""
    line = "%(asctime)s %(levelname)s %(name)s: %(stream)s%(message)s"
    logging.basicConfig(level=logging.INFO, format=line, stream=sys.stderr)
    for handler in logging.getLogger().handlers:
        handler.addFilter(add_stream)
    for library in ("py4j", "pyiceberg", "kazoo"):
        logging.getLogger(library).setLevel(logging.WARNING)


def add_stream(record: logging.LogRecord) -> bool:
    """Set `record.stream` to the stream that this thread works on, with a space after it. A filter for handlers."""
    name = current_stream.get()
    record.stream = f"[{name}] " if name else ""
    return True


def log_failure(logger: logging.Logger, job: str, stream: str, error: WaybillError) -> None:
    """Log why a job ends, and whether the same command may succeed later."""
    again = " (running again may succeed)" if error.retriable else ""
    logger.error("%s %s: %s: %s%s", job, stream, type(error).__name__, error, again)


def write_report(path: Path | None, document: Any) -> None:
    """Write a report's JSON document to a file; nothing if `path` is None."""
    if path:
        path.write_text(json.dumps(document, indent=2) + "\n")


def end_process(code: int) -> NoReturn:
    """End the process without the interpreter's clean-up, which takes most of a second while the JVM waits."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
