"""Rounds: the scenarios of neighbouring seeds run in parallel on one stack, with the same fault of a server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Any

from chaos.scenario import Scenario, ServerFault, draw, draw_server_fault
from chaos.scene import Scene, SceneResult
from chaos.world import World

SEEDS_PER_ROUND = 4

_FIRST_OBJECT_SECONDS = 15.0
_AWAY_SECONDS = 2.0
_HELD_SECONDS = 5.0
_FROZEN_SECONDS = 4.0


def round_of(seed: int) -> int:
    """The round that a seed belongs to, and so the fault of a server that it meets, run alone or with others."""
    return (seed - 1) // SEEDS_PER_ROUND


def rounds(first_seed: int, seeds: int) -> Iterator[tuple[int, list[int]]]:
    """The rounds of those seeds, each with its number."""
    for number, members in groupby(range(first_seed, first_seed + seeds), key=round_of):
        yield number, list(members)


def play_round(
    world: World,
    scenarios: Sequence[Scenario],
    server_fault: ServerFault,
    *,
    on_done: Callable[[SceneResult], None] = lambda _: None,
    stage: Callable[[World, Any], Scene] = Scene,
) -> list[SceneResult]:
    """Run scenarios at the same time, and the fault of a server once each has an object. Their results, in order.

    `stage`: makes the scene of a scenario.
    """
    scenes = [stage(world, scenario) for scenario in scenarios]
    with ThreadPoolExecutor(len(scenes) + 1, thread_name_prefix="chaos-scene") as pool:
        hurt = pool.submit(_hurt, world, scenes, server_fault)
        futures = [pool.submit(scene.run) for scene in scenes]
        results = []
        try:
            for future in futures:
                results.append(future.result())
                on_done(results[-1])
            hurt.result()
        except BaseException:  # Ctrl-C
            for scene in scenes:
                scene.abandon()
            raise
    return results


def play_seeds(
    world: World, first_seed: int, seeds: int, *, guard: bool, on_done: Callable[[SceneResult], None]
) -> Iterator[list[SceneResult]]:
    """All seeds, round by round."""
    for number, members in rounds(first_seed, seeds):
        scenarios = [draw(seed, guard=guard) for seed in members]
        yield play_round(world, scenarios, draw_server_fault(number), on_done=on_done)


def _hurt(world: World, scenes: Sequence[Scene], fault: ServerFault) -> None:
    """Inject the round's fault into a server, and undo it. Scenarios go on until this is done."""
    try:
        if fault is ServerFault.NONE:
            return
        _wait_for_objects(scenes)
        _HURT[fault](world, scenes)
        for scene in scenes:
            scene.count(str(fault))
    finally:
        for scene in scenes:
            scene.server_fault_done.set()


def _wait_for_objects(scenes: Sequence[Scene]) -> None:
    deadline = time.monotonic() + _FIRST_OBJECT_SECONDS
    for scene in scenes:
        scene.first_object.wait(max(0.0, deadline - time.monotonic()))


def _restart_zookeeper(world: World, _: Sequence[Scene]) -> None:
    world.stack.kill_zookeeper()
    time.sleep(_AWAY_SECONDS)
    world.stack.start_zookeeper()


def _wipe_zookeeper(world: World, _: Sequence[Scene]) -> None:
    world.stack.kill_zookeeper()
    world.stack.wipe_zookeeper()
    world.stack.start_zookeeper()


def _kill_leader(world: World, scenes: Sequence[Scene]) -> None:
    """While answers of it are on their way: the proxies hold them back, so the lanes get the half that was sent."""
    leader = world.leader(scenes[0].topic)
    address = world.stack.bootstrap_servers.split(",")[leader - 1]
    proxies = [scene.broker_proxy(address) for scene in scenes]
    for proxy in proxies:
        world.proxies.loop.call_soon_threadsafe(proxy.hold)
    deadline = time.monotonic() + _HELD_SECONDS
    while not any(proxy.held for proxy in proxies) and time.monotonic() < deadline:
        time.sleep(0.02)
    world.stack.kill_broker(leader)
    for proxy in proxies:
        world.proxies.loop.call_soon_threadsafe(proxy.heal)
    time.sleep(_AWAY_SECONDS)
    world.stack.start_broker(leader)


def _freeze_broker(world: World, scenes: Sequence[Scene]) -> None:
    name = f"kafka-{world.leader(scenes[0].topic)}"
    world.stack.pause_server(name)
    try:
        time.sleep(_FROZEN_SECONDS)
    finally:
        world.stack.resume_server(name)


def _restart_s3(world: World, _: Sequence[Scene]) -> None:
    world.stack.kill_s3()
    time.sleep(_AWAY_SECONDS)
    world.stack.start_s3()


_HURT: dict[ServerFault, Callable[[World, Sequence[Scene]], None]] = {
    ServerFault.ZOOKEEPER_RESTARTED: _restart_zookeeper,
    ServerFault.ZOOKEEPER_WIPED: _wipe_zookeeper,
    ServerFault.LEADER_KILLED: _kill_leader,
    ServerFault.BROKER_FROZEN: _freeze_broker,
    ServerFault.S3_RESTARTED: _restart_s3,
}
