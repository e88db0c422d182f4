"""What the fault tests share: one world on the run's stack, and a way to run scenarios side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest
from chaos.rounds import play_round
from chaos.scenario import Scenario, ServerFault
from chaos.scene import SceneResult
from chaos.world import World, open_world
from scenarios import Play

if TYPE_CHECKING:
    from devstack import Stack


@pytest.fixture(scope="session")
def world(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The stack, with a fork server for lanes and a thread for proxies."""
    with open_world(stack, tmp_path_factory.mktemp("chaos")) as opened:
        yield opened


@pytest.fixture(scope="session")
def play(world: World) -> Play:
    """Run scenarios at the same time, by name, with a fault of a server if one is given."""

    def run(scenarios: Mapping[str, Scenario], server_fault: ServerFault = ServerFault.NONE) -> dict[str, SceneResult]:
        results = play_round(world, list(scenarios.values()), server_fault)
        return dict(zip(scenarios, results, strict=True))

    return run
