"""Random histories of runs, holds and decisions: readers see exactly what the decisions allow, and never a mixture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from publish_chaos.history import History

if TYPE_CHECKING:
    from devstack import Stack

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.matrix]

FOUND = (46,)
"""Seeds that have found a fault: a promotion brought the first rows to a quarantine, which then had no progress."""
SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.deep) for seed in (*range(2, 24), *FOUND))]


@pytest.mark.parametrize("seed", SEEDS)
def test_readers_see_what_the_decisions_allow(stack: Stack, seed: int) -> None:
    del stack  # its addresses are in the environment
    history = History(seed)
    assert history.play().faults == [], "\n".join(history.trace)
