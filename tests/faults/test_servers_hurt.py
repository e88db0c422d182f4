"""Servers die, restart and lose their data, while two schedulers run the same lanes."""

from __future__ import annotations

import pytest
from chaos.producers import ProducerKind
from chaos.scenario import ServerFault
from scenarios import Play, small

pytestmark = [pytest.mark.deep, pytest.mark.faults, pytest.mark.integration, pytest.mark.stack_alone]


@pytest.mark.parametrize("fault", [fault for fault in ServerFault if fault is not ServerFault.NONE])
def test_server_that_goes_and_comes_back(play: Play, fault: ServerFault) -> None:
    results = play(
        {
            "two schedulers": small(ProducerKind.IDEMPOTENT, schedulers=2, max_bytes=(8 << 10, 32 << 10)),
            "transactions": small(*ProducerKind),
        },
        fault,
    )
    for result in results.values():
        assert result.injected[str(fault)] == 1
        assert not result.faults
        assert result.archived >= len(result.ledger.acknowledged) >= 600
    transactions = results["transactions"].ledger
    assert transactions.committed_transactions
    assert transactions.aborted_transactions
