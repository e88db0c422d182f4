"""Shared by the fault tests: one world on the run's stack, and a fixture that plays scenarios in parallel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from chaos.rounds import play_round
from chaos.scenario import Scenario, ServerFault
from chaos.scene import SceneResult
from chaos.world import World, open_world
from scenarios import Play

if TYPE_CHECKING:
    from devstack import Stack


SIDE_BY_SIDE = 6
"""Scenarios at a time: more of them, and on two cores their sessions end by themselves."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A module's scenarios run in the first test's set-up: on a busy machine it takes minutes."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def world(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The stack, with a fork server for lanes and a thread for proxies."""
    with open_world(stack, tmp_path_factory.mktemp("chaos")) as opened:
        yield opened


@pytest.fixture(scope="session")
def play(world: World) -> Play:
    """Run scenarios by name: all at once with a fault of a server if one is given, else a few at a time."""

    def alone(scenario: Scenario) -> SceneResult:
        (result,) = play_round(world, [scenario], ServerFault.NONE)
        return result

    def run(scenarios: Mapping[str, Scenario], server_fault: ServerFault = ServerFault.NONE) -> dict[str, SceneResult]:
        if server_fault is not ServerFault.NONE:
            assert len(scenarios) <= SIDE_BY_SIDE
            return dict(zip(scenarios, play_round(world, [*scenarios.values()], server_fault), strict=True))
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            return dict(zip(scenarios, pool.map(alone, scenarios.values()), strict=True))

    return run
