"""The fixed scenarios of the fault tests: each shows one property, in a short time."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from chaos.producers import ProducerKind, ProducerPlan
from chaos.scenario import PART_BYTES, Scenario
from chaos.scene import SceneResult

Play = Callable[..., dict[str, SceneResult]]
"""The fixture `play`: runs scenarios, by name, with a fault of a server if one is given."""

_numbers = itertools.count(900_001)


def small(*kinds: ProducerKind, **changes: Any) -> Scenario:
    """Objects of 16 KiB from small messages; one producer of each kind (default: an idempotent one)."""
    producers = tuple(_producer(kind, number) for number, kind in enumerate(kinds or (ProducerKind.IDEMPOTENT,)))
    settings: dict[str, Any] = {"max_bytes": (16 << 10,), "s3_attempts": 1, "producers": producers}
    return _scenario(settings | changes)


def large(**changes: Any) -> Scenario:
    """A backlog of eight objects of 6 MiB in parts of 5 MiB: as many calls as the faults of a scenario wait for."""
    producer = ProducerPlan(
        name="large-0",
        kind=ProducerKind.IDEMPOTENT,
        messages=500,
        burst=5,
        pause_seconds=0.01,
        value_bytes=100_000,
        codec="none",
        batch_messages=4,
        aborted_share=0.0,
        partitions=(0,),
        seed=1,
    )
    settings = {
        "max_bytes": (6 << 20,),
        "backlog_first": True,
        "part_bytes": PART_BYTES,
        "fetch_bytes": 4 << 20,
        "s3_attempts": 1,
        "producers": (producer,),
    }
    return _scenario(settings | changes)


def _scenario(settings: dict[str, Any]) -> Scenario:
    return Scenario(seed=next(_numbers), **{"session_seconds": 4, "faults_within_seconds": 60.0, **settings})


def _producer(kind: ProducerKind, number: int) -> ProducerPlan:
    return ProducerPlan(
        name=f"{kind}-{number}",
        kind=kind,
        messages=600,
        burst=40,
        pause_seconds=0.1,
        value_bytes=200,
        codec=("none", "lz4", "zstd")[number % 3],
        batch_messages=10,
        aborted_share=0.3,
        partitions=(0,),
        seed=number,
    )
