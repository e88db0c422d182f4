"""The commands of `python -m devstack`; the targets of the Makefile call them."""

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
from devstack.kafka import BROKER_IDS
from devstack.stack import Stack
from devstack.state import ENVIRONMENT_FILE, project_root, state_dir
from waybill.base.errors import StackError, WaybillError

if TYPE_CHECKING:
    from types import FrameType

app = typer.Typer(
    help="The local stack: Kafka, ZooKeeper, S3 and Airflow as ordinary processes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console(highlight=False, soft_wrap=True)

# So that the stack works, and the watch tells how it is. Also for the DAGs of a stream that is declared later.
_NOT_PAUSED = {"AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False"}
_PAGES_PATH = "/waybill/ui/"
_INTERRUPTED_CODE = 130
_OTHER_OWNER_SECONDS = 600.0


@app.command()
def up(airflow: Annotated[bool, typer.Option(help="Start Airflow, too.")] = True) -> None:
    """Start all servers, and leave them running until `down`."""
    directory = state_dir()
    stack = _find(directory)
    if stack is None:
        console.print(f"Starting the stack; its state is in {directory}")
        stack = Stack.start(directory, airflow=airflow, airflow_environment=_NOT_PAUSED, on_progress=_print_progress)
        try:
            stack.release()
        except BaseException:
            stack.stop()
            raise
    else:
        console.print(f"The stack is running already (guardian: process {stack.status().pid}).")
        if ended := stack.restart_ended():
            console.print(f"Started again, since they had ended: {', '.join(ended)}")
        if airflow:
            stack.start_airflow(_NOT_PAUSED)
    if airflow:
        _unpause_dags(stack)
    _print_endpoints(stack)


def _unpause_dags(stack: Stack) -> None:
    """Unpause the DAGs that an earlier start created paused, as the demo does; the others are created unpaused."""
    _print_progress("unpausing the DAGs")
    with stack.airflow.client() as client:
        client.wait_for_dag("watch")
        for dag_id in client.dag_ids():
            client.unpause(dag_id)


def _find(directory: Path) -> Stack | None:
    """Return the stack that runs in `directory`, or None. If another process owns it, wait for that process first."""
    end = time.monotonic() + _OTHER_OWNER_SECONDS
    is_reported = False
    while (guardian := GuardianHandle.find(directory)) is not None:
        owner = guardian.status().owner_pid
        if owner is None:
            return Stack.attach(directory, on_progress=_print_progress)
        if not is_reported:
            console.print(f"Process {owner} is starting or using the stack: waiting for it.")
            is_reported = True
        if time.monotonic() > end:
            raise StackError(f"process {owner} has been using the stack in {directory} for ten minutes")
        time.sleep(0.5)
    return None


@app.command()
def down(
    wipe: Annotated[
        bool, typer.Option("--wipe", help="Delete the state, too: topics, objects, tables, DAG runs.")
    ] = False,
) -> None:
    """Stop all servers."""
    directory = state_dir()
    guardian = GuardianHandle.find(directory)
    if guardian is None:
        console.print(f"No stack is running in {directory}.")
    else:
        servers = [server.name for server in guardian.status().servers if server.running]
        guardian.shutdown()
        console.print(f"Stopped {', '.join(servers)}.")
    if wipe and directory.exists():
        shutil.rmtree(directory)
        console.print(f"Deleted {directory}.")


@app.command()
def status() -> None:
    """Print the servers and their addresses. Exit code 1 if no stack is running or a server has ended."""
    directory = state_dir()
    stack = Stack.attach(directory)
    if stack is None:
        console.print(f"No stack is running in {directory}. Start one with: make up")
        raise typer.Exit(1)
    servers = [server for server in stack.status().servers if not server.once]
    for server in servers:
        log = f", see {server.log}" if server.dead else ""
        _print_line(server.name, f"process {server.pid} {server.how_it_ended()}{log}")
    _print_endpoints(stack)
    if any(server.dead for server in servers):
        raise typer.Exit(1)


@app.command("kill-broker")
def kill_broker(node_id: Annotated[int, typer.Argument(help="The id of the broker: 1, 2 or 3.")]) -> None:
    """End a Kafka broker with SIGKILL."""
    _running_stack(node_id).kill_broker(node_id)
    console.print(f"Broker {node_id} has ended.")


@app.command("start-broker")
def start_broker(node_id: Annotated[int, typer.Argument(help="The id of the broker: 1, 2 or 3.")]) -> None:
    """Start a Kafka broker again, and wait until it has joined the cluster."""
    _running_stack(node_id).start_broker(node_id)
    console.print(f"Broker {node_id} is running.")


def _running_stack(node_id: int) -> Stack:
    """Return the stack that runs. Raises `StackError` if none does, or if it has no such broker."""
    if node_id not in BROKER_IDS:
        raise StackError(f"the local stack has no broker {node_id}: its brokers are {', '.join(map(str, BROKER_IDS))}")
    stack = Stack.attach(state_dir())
    if stack is None:
        raise StackError(f"no stack is running in {state_dir()}. Start one with: make up")
    return stack


@app.command()
def demo() -> None:
    """Send real data through the whole system, and count it at the end."""
    from devstack.demo import main as run_demo

    raise typer.Exit(run_demo(console, _print_progress))


@app.command("demo-replay")
def demo_replay() -> None:
    """A webhook receiver misses an hour, asks for it, and gets exactly that hour."""
    from devstack.demo_replay import main as run_demo

    raise typer.Exit(run_demo(console, _print_progress))


@app.command("spark-env")
def spark_env(
    output: Annotated[Path, typer.Option(help="The archive to write.")] = Path("dist/waybill-spark-env.tar.gz"),
    requirements: Annotated[Path, typer.Option(help="The locked requirements.")] = Path("requirements-spark.txt"),
    extra: Annotated[
        list[Path] | None, typer.Option(help="More requirements, for the classes of parsers of kind `python`.")
    ] = None,
) -> None:
    """Build the Python environment of Spark's executors, as an archive for `spark-submit --archives`."""
    from devstack.spark_env import build

    start = time.monotonic()
    build(output, requirements, extra or [], project_root() / "include", _print_progress)
    console.print(f"{output}: {output.stat().st_size / 1e6:.0f} MB in {time.monotonic() - start:.0f} s")


def _print_progress(message: str) -> None:
    console.print(f"  {message}", markup=False)


def _print_endpoints(stack: Stack) -> None:
    console.print()
    if stack.airflow_runs():
        _print_line("Airflow", f"{stack.airflow.url}   user {USER}   password {stack.airflow.password}")
        _print_line("Waybill's pages", f"{stack.airflow.url}{_PAGES_PATH}")
    _print_line("Kafka", stack.bootstrap_servers)
    _print_line("ZooKeeper", f"{stack.zookeeper_hosts}/waybill")
    _print_line("S3", f"{stack.s3_endpoint_url}   bucket {stack.bucket}   ({stack.s3.program.kind})")
    _print_line("Iceberg", f"{stack.catalog_uri}   warehouse {stack.warehouse}")
    _print_line("Logs", str(stack.logs))
    _print_line("Shell", f"source {_relative(stack.state_dir / ENVIRONMENT_FILE)}   (then `waybill` works on it)")
    _print_line("Stop", "make down")


def _print_line(name: str, value: str) -> None:
    # Not a table, which a narrow terminal would wrap: addresses should stay in one piece, to be copied.
    console.print(f"{name:22}{value}", markup=False)


def _relative(path: Path) -> str:
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def _interrupt(_signum: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Run the command line and return the exit code. A `WaybillError` is printed without a traceback."""
    # A closed terminal (SIGHUP) and a cancelled CI job (SIGTERM) are handled like Ctrl-C. Ctrl-C itself (SIGINT) may be
    # ignored: a background job of a script inherits that.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, _interrupt)
    try:
        code = _run()
    except WaybillError as error:
        console.print("error:", style="bold red", end=" ")
        console.print(str(error), markup=False)
        return 1
    if code == _INTERRUPTED_CODE:
        console.print("Interrupted. The servers that this command started were stopped.")
    return code


def _run() -> int:
    """Return the command's exit code. Depending on where an interrupt arrives, typer raises it or returns a code."""
    try:
        code = app(standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        return _INTERRUPTED_CODE
    except typer.Exit as stop:
        return stop.exit_code
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    sys.exit(main())
