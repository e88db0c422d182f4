"""`python -m devstack up | down | status | demo`; `make up`, `make down` and `make demo` call it."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from devstack.airflow import USER
from devstack.control import GuardianHandle
from devstack.stack import ENVIRONMENT_FILE, Stack, project_root, state_dir
from waybill.errors import StackError, WaybillError

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["main"]

app = typer.Typer(
    help="The local stack: Kafka, ZooKeeper, S3 and Airflow as ordinary processes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console(highlight=False, soft_wrap=True)

_INTERRUPTED = 130
_OTHER_UP_SECONDS = 600.0


@app.command()
def up(airflow: Annotated[bool, typer.Option(help="Airflow too.")] = True) -> None:
    """Start everything, and leave it running until `down`."""
    directory = state_dir()
    stack = _find(directory)
    if stack is None:
        console.print(f"Starting the stack; its state is in {directory}")
        stack = Stack.start(directory, airflow=airflow, on_progress=_say)
        try:
            stack.release()
        except BaseException:
            stack.stop()
            raise
    else:
        console.print(f"The stack runs already (guardian: process {stack.status().pid}).")
        if ended := stack.restart_ended():
            console.print(f"These had ended and were started again: {', '.join(ended)}")
        if airflow:
            stack.start_airflow()
    _show(stack)


def _find(directory: Path) -> Stack | None:
    """The stack that runs in `directory`; if another `up` is starting it right now, wait for that."""
    end = time.monotonic() + _OTHER_UP_SECONDS
    said = False
    while (guardian := GuardianHandle.find(directory)) is not None:
        owner = guardian.status().owner_pid
        if owner is None:
            return Stack.attach(directory, on_progress=_say)
        if not said:
            console.print(f"The stack belongs to process {owner}, which is starting or using it: waiting for it.")
            said = True
        if time.monotonic() > end:
            raise StackError(f"process {owner} has held the stack in {directory} for ten minutes")
        time.sleep(0.5)
    return None


@app.command()
def down(
    wipe: Annotated[bool, typer.Option("--wipe", help="Delete the state too: topics, objects, tables, runs.")] = False,
) -> None:
    """Stop what `up` started."""
    directory = state_dir()
    guardian = GuardianHandle.find(directory)
    if guardian is None:
        console.print(f"No stack runs in {directory}.")
    else:
        servers = [server.name for server in guardian.status().servers if server.running]
        guardian.shutdown()
        console.print(f"Stopped {', '.join(servers)}.")
    if wipe and directory.exists():
        shutil.rmtree(directory)
        console.print(f"Deleted {directory}.")


@app.command()
def status() -> None:
    """What runs, and where. Exit code 1 when nothing does, or a server has ended."""
    directory = state_dir()
    stack = Stack.attach(directory)
    if stack is None:
        console.print(f"No stack runs in {directory}. Start one with: make up")
        raise typer.Exit(1)
    servers = [server for server in stack.status().servers if not server.once]
    for server in servers:
        ended = f", see {server.log}" if server.dead else ""
        _line(server.name, f"process {server.pid} {server.how_it_ended()}{ended}")
    _show(stack)
    if any(server.dead for server in servers):
        raise typer.Exit(1)


@app.command()
def demo() -> None:
    """The whole path on real input, counted."""
    from devstack.demo import main as run

    raise typer.Exit(run(console, _say))


@app.command("spark-env")
def spark_env(
    output: Annotated[Path, typer.Option(help="The archive to write.")] = Path("dist/waybill-spark-env.tar.gz"),
    requirements: Annotated[Path, typer.Option(help="What executors need, locked.")] = Path("requirements-spark.txt"),
    extra: Annotated[
        list[Path] | None, typer.Option(help="More requirements: of the classes that parsers `python` name.")
    ] = None,
) -> None:
    """Make the Python environment of Spark's executors, as an archive for `spark-submit --archives`."""
    from devstack.spark_env import build

    began = time.monotonic()
    build(output, requirements, extra or [], project_root() / "include", _say)
    console.print(f"{output}: {output.stat().st_size / 1e6:.0f} MB in {time.monotonic() - began:.0f} s")


def _say(message: str) -> None:
    console.print(f"  {message}", markup=False)


def _show(stack: Stack) -> None:
    console.print()
    if stack.airflow_runs():
        _line("Airflow", f"{stack.airflow.url}   user {USER}   password {stack.airflow.password}")
    _line("Kafka", stack.bootstrap_servers)
    _line("ZooKeeper", f"{stack.zookeeper_hosts}/waybill")
    _line("S3", f"{stack.s3_endpoint_url}   bucket {stack.bucket}   ({stack.s3.program.kind})")
    _line("Iceberg", f"{stack.catalog_uri}   warehouse {stack.warehouse}")
    _line("Logs", str(stack.logs))
    _line("Shell", f"source {_from_here(stack.state_dir / ENVIRONMENT_FILE)}   (then `waybill` works on it)")
    _line("Stop", "make down")


def _line(name: str, value: str) -> None:
    # Not a table: a narrow terminal, or a pipe, would cut addresses that are meant to be copied.
    console.print(f"{name:22}{value}", markup=False)


def _from_here(path: Path) -> str:
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def _interrupt(_signum: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Returns the exit code. Errors that somebody can act on are printed without a traceback."""
    # A terminal that closes and a CI job that is cancelled are Ctrl-C by other names.
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, _interrupt)
    try:
        code = _run()
    except WaybillError as error:
        console.print("error:", style="bold red", end=" ")
        console.print(str(error), markup=False)
        return 1
    if code == _INTERRUPTED:
        console.print("Interrupted. What was started for this has been stopped.")
    return code


def _run() -> int:
    """The command's exit code; typer says by one of three ways that it was interrupted."""
    try:
        code = app(standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        return _INTERRUPTED
    except typer.Exit as stop:
        return stop.exit_code
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    sys.exit(main())
