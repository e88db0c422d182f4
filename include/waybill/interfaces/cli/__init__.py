"""The command line, `waybill …`.

- `app`: the root; `commands/`: all commands with their options, by subject.
- Each other module implements a group of commands.
- `render`, `targets`: what they share: printing, and the meaning of arguments. `render.Output` prints what a command
  found, as a table, as lines or as JSON.

Outside of Airflow, connections come from environment variables only (docs/your-own-kafka-and-s3.md). A `WaybillError`
is printed to stderr and ends the command with exit code 1; a wrong command line ends it with exit code 2. If
`WAYBILL_DEBUG` is set, the traceback is printed, too.

Commands import their modules when they run, so that `waybill --help` does not wait for pyarrow.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from waybill.base.errors import WaybillError

__all__ = ["DEBUG_VARIABLE", "main", "run"]

DEBUG_VARIABLE = "WAYBILL_DEBUG"


def main() -> None:
    """Run the command line of this process, and end the process with the exit code."""
    _configure_logging()
    run(sys.argv[1:])


def run(arguments: Sequence[str]) -> NoReturn:
    """Run a command line. Raises `SystemExit` with the exit code; with `WAYBILL_DEBUG`, also `WaybillError`."""
    from waybill.interfaces.cli.app import app

    try:
        app(list(arguments), prog_name="waybill")
    except WaybillError as error:
        if _is_debugging():
            raise
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        # The reader (head, a pager) has closed the pipe. Without this, flushing stdout at exit would raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    sys.exit(0)


def _is_debugging() -> bool:
    return bool(os.environ.get(DEBUG_VARIABLE))


def _configure_logging() -> None:
    level = logging.DEBUG if _is_debugging() else logging.WARNING
    logging.basicConfig(level=level, format="%(levelname)s: %(message)s", stream=sys.stderr)
    # kafka-python and kazoo log each attempt to connect; the error message at the end is enough.
    for library in ("kafka", "kazoo", "botocore"):
        logging.getLogger(library).setLevel(logging.INFO if _is_debugging() else logging.CRITICAL)
