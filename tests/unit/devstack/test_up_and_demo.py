"""What `make up` and `make demo` leave behind: DAGs that run, a status for Waybill's pages, and their address."""

from __future__ import annotations

import io
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from devstack import __main__ as commands
from devstack import demo
from devstack.airflow import Airflow, AirflowClient

DAGS = ["flights_ingest", "flights_partition", "watch", "maintenance"]


class FakeAirflow:
    """Airflow with DAGs that are paused, as it creates them; it has the others once it has `watch`."""

    url = "http://127.0.0.1:23456"
    password = "secret"

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.environments: list[dict[str, str]] = []
        self.unpaused: list[str] = []

    @contextmanager
    def client(self):  # type: ignore[no-untyped-def]
        yield self

    def wait_for_dag(self, dag_id: str) -> None:
        self.calls.append(f"wait for {dag_id}")

    def dag_ids(self) -> list[str]:
        self.calls.append("list")
        return DAGS

    def unpause(self, dag_id: str) -> None:
        self.unpaused.append(dag_id)


def fake_stack(airflow: FakeAirflow, *, has_airflow: bool = True) -> SimpleNamespace:
    return SimpleNamespace(
        airflow=airflow,
        airflow_runs=lambda: has_airflow,
        start_airflow=airflow.environments.append,
        restart_ended=list,
        status=lambda: SimpleNamespace(pid=1),
        release=lambda: None,
        bootstrap_servers="127.0.0.1:1",
        zookeeper_hosts="127.0.0.1:2",
        s3_endpoint_url="http://127.0.0.1:3",
        bucket="waybill",
        s3=SimpleNamespace(program=SimpleNamespace(kind="moto")),
        catalog_uri="sqlite:///x",
        warehouse="s3://waybill/warehouse",
        logs=Path("/logs"),
        state_dir=Path("/state"),
    )


def up(monkeypatch: pytest.MonkeyPatch, stack: SimpleNamespace, *arguments: str, is_running: bool) -> str:
    out = io.StringIO()
    monkeypatch.setattr(commands, "console", Console(file=out, width=200))
    monkeypatch.setattr(commands, "_find", lambda _: stack if is_running else None)

    def start(*_: object, airflow: bool, airflow_environment: dict[str, str], **__: object) -> SimpleNamespace:
        if airflow:
            stack.start_airflow(airflow_environment)
        return stack

    monkeypatch.setattr(commands.Stack, "start", start)
    result = CliRunner().invoke(commands.app, ["up", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return out.getvalue()


@pytest.mark.parametrize("is_running", [False, True])
def test_up_unpauses_all_dags_and_prints_the_address_of_the_pages(
    monkeypatch: pytest.MonkeyPatch, is_running: bool
) -> None:
    airflow = FakeAirflow()
    output = up(monkeypatch, fake_stack(airflow), is_running=is_running)
    # A DAG that is parsed after the list was read, or whose stream is declared later, is created unpaused.
    assert airflow.environments == [{"AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False"}]
    assert airflow.calls == ["wait for watch", "list"]
    assert airflow.unpaused == DAGS
    (line,) = (each for each in output.splitlines() if each.startswith("Waybill's pages"))
    assert line.split()[-1] == f"{airflow.url}/waybill/ui/"


def test_up_without_airflow_unpauses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    airflow = FakeAirflow()
    output = up(monkeypatch, fake_stack(airflow, has_airflow=False), "--no-airflow", is_running=False)
    assert airflow.calls == []
    assert "/waybill/ui/" not in output


def test_the_demo_leaves_a_status_of_its_end_for_the_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch is the last command: after it, no stage changes what the pages show."""
    done: list[str] = []

    def waybill(*arguments: str, accept: tuple[int, ...] = (0,)) -> None:
        assert accept == (0, 1), "a promise of the demo's stream may be broken, which is no failure of the watch"
        done.append(" ".join(arguments))

    counts = demo.Counts(ok=True, archived=1, rows=1, quarantined=0, waiting=0, lost=0, repeated=0)
    played = SimpleNamespace(play=lambda: done.append("hold") or True)
    monkeypatch.setattr(demo, "create_topic", lambda *_: None)
    monkeypatch.setattr(demo, "RenamedField", lambda *_: played)
    stack = SimpleNamespace(bootstrap_servers="127.0.0.1:1")
    of_demo = demo.Demo(stack, FakeAirflow(), Console(file=io.StringIO()))  # type: ignore[arg-type]
    for name, result in {
        "_offsets": [],
        "_produce": 1,
        "_ingest": None,
        "_partition": None,
        "_dedup": None,
        "_verify": counts,
        "_unique": demo.Unique(rows=1, dropped=0, to_sweep=0),
        "_print_result": None,
    }.items():
        monkeypatch.setattr(of_demo, name, lambda *_, name=name, result=result: done.append(name) or result)
    monkeypatch.setattr(of_demo, "_waybill", waybill)
    of_demo.run()
    assert done[-3:] == ["hold", "watch --json", "_print_result"]


def test_the_pages_address_is_that_of_the_plugin() -> None:
    """The address is written twice, since the local stack does not import Waybill."""
    plugins = Path(__file__).parents[3] / "plugins"
    sources = [*plugins.glob("*.py"), *Path(sys.modules["waybill"].__path__[0], "orchestration").glob("*.py")]
    assert any(commands._PAGES_PATH.rstrip("/") in path.read_text() for path in sources)


def test_all_dags_are_listed_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """With three DAGs for each stream, 40 streams have more than one page of them."""
    names = [f"dag_{number:03}" for number in range(250)]

    def get(path: str, **query: object) -> dict[str, object]:
        assert path == "/dags"
        offset, limit = query.get("offset", 0), query["limit"]
        assert isinstance(offset, int)
        assert isinstance(limit, int)
        page = names[offset : offset + min(limit, 100)]
        return {"dags": [{"dag_id": name} for name in page], "total_entries": len(names)}

    with AirflowClient("http://127.0.0.1:1", "admin", "secret") as client:
        monkeypatch.setattr(client, "_get", get)
        assert client.dag_ids() == names


def test_airflow_gets_the_environment_that_up_gives(tmp_path: Path) -> None:
    airflow = Airflow(tmp_path, tmp_path, (1, 2, 3), "secret", commands._NOT_PAUSED)
    assert airflow.environment().items() >= commands._NOT_PAUSED.items()
