"""What integration, fault and end-to-end tests share: one real stack per run, started when first asked for."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
import uuid
import zlib
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from devstack import Stack

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

# A background job of a script inherits that SIGINT is ignored, and its child processes do, too.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadlines: a busy machine, or the first call of a compiled loop, may take any time. pytest-timeout finds hangs.
settings.register_profile("default", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("deep", settings.get_profile("default"), max_examples=200)
settings.load_profile("deep" if os.environ.get("WAYBILL_DEEP") == "1" else "default")


_TABLES = frozenset({"make_scene", "spark", "spark_session", "maintenance"})
"""The fixtures of tests with the marker `tables`."""
_HURTFUL = (
    "kill_broker",
    "kill_s3",
    "kill_zookeeper",
    "pause_server",
    "stop_broker",
    "stop_zookeeper",
    "wipe_zookeeper",
)
_DEEP_TIMEOUT_SECONDS = 900
"""For deep tests without a timeout of their own: a property has four times as many examples there."""
_HALVES = ("1", "2")
"""The values of `make test-deep HALF=…`."""
_SAMPLE = 2
"""How many parameters of a `matrix` test `make test-deep` runs."""


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what `run.py` selects by: the tests of tables, and those that need the stack alone as deep."""
    if _TABLES & set(getattr(item, "fixturenames", ())):
        item.add_marker("tables")
    if item.get_closest_marker("stack_alone"):
        item.add_marker("deep")
    if os.environ.get("WAYBILL_DEEP") == "1" and item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(_DEEP_TIMEOUT_SECONDS))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out drills, unless `-m drill` selects them, and most deep parameters of tests with the marker `matrix`.

    `MATRIX=full` asks for all parameters. The sample is spread over them, and always the same. `HALF=1` or `HALF=2`
    leaves out the tests of the other half.
    """
    if config.option.markexpr != "drill":
        _leave_out(config, items, [item for item in items if item.get_closest_marker("drill")])
    if half := os.environ.get("WAYBILL_DEEP_HALF"):
        if half not in _HALVES:
            raise pytest.UsageError(
                f"HALF is {half!r}: give one of {' and '.join(_HALVES)}, or leave it out for all tests"
            )
        _leave_out(config, items, [item for item in items if _half_of(item) != half])
    if os.environ.get("WAYBILL_MATRIX") != "full":
        _leave_out(config, items, _beyond_samples(items))


def _leave_out(config: pytest.Config, items: list[pytest.Item], left_out: Collection[pytest.Item]) -> None:
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]


def _half_of(item: pytest.Item) -> str:
    """Return the half of the deep tests that a test is in, with all its parameters. Only its name decides."""
    return _HALVES[zlib.crc32(_test_of(item).encode()) % len(_HALVES)]


def _beyond_samples(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the deep parameters of `matrix` tests that are not in the sample."""
    matrices: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("matrix") and item.get_closest_marker("deep"):
            matrices.setdefault(_test_of(item), []).append(item)
    beyond: list[pytest.Item] = []
    for matrix in matrices.values():
        sample = {matrix[number * len(matrix) // _SAMPLE] for number in range(_SAMPLE)}
        beyond += [item for item in matrix if item not in sample]
    return beyond


def _test_of(item: pytest.Item) -> str:
    """Return the file and name of a test, without its parameters."""
    return item.nodeid.partition("[")[0]


def pytest_collection_finish() -> None:
    """What was imported stays: the garbage collector need not look through all of it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def stack(pytestconfig: pytest.Config) -> Iterator[Stack]:
    """Kafka, ZooKeeper and S3 for the whole run, with their connections in the environment.

    A test that hurts it (kills a broker, wipes ZooKeeper) restores it before it ends.
    """
    before = os.environ.copy()
    try:
        with _stack_of_run() or _own_stack(pytestconfig) as started:
            os.environ.update(started.environment())
            yield started
    finally:
        os.environ.clear()
        os.environ.update(before)


def _stack_of_run() -> AbstractContextManager[Stack] | None:
    """Return the stack that `tests/run.py` has started for several processes, and stops; None: there is none."""
    state = os.environ.get("WAYBILL_TESTS_STACK")
    if state is None:
        return None
    started = Stack.attach(Path(state))
    assert started is not None, f"no stack runs in WAYBILL_TESTS_STACK={state}"
    return nullcontext(started)


@contextmanager
def _own_stack(pytestconfig: pytest.Config) -> Iterator[Stack]:
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def report(message: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\nstack: {message}", end="", flush=True)

    state = Path(tempfile.mkdtemp(prefix="waybill-tests-"))
    try:
        started = Stack.start(state / "stack", on_progress=report)
        try:
            yield started
        finally:
            started.stop(grace_seconds=0.0)
    finally:
        shutil.rmtree(state, ignore_errors=True)


@pytest.fixture(autouse=True)
def _servers_of_others(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail a test that stops a server which tests of other processes use. It needs the marker `stack_alone`."""
    if "WAYBILL_TESTS_STACK" not in os.environ or request.node.get_closest_marker("stack_alone"):
        return

    def refuse(*_: object) -> None:
        pytest.fail("this test hurts a server that other tests use at the same time: mark it `stack_alone`")

    for method in _HURTFUL:
        monkeypatch.setattr(Stack, method, refuse)


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """A name that no other test and no earlier run used. The topic is not created."""
    test = "".join(character if character.isalnum() else "-" for character in request.node.name)
    return f"{test[:60].strip('-')}-{uuid.uuid4().hex[:8]}"
