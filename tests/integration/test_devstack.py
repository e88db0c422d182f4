"""The local stack, with real processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from devstack import Stack

pytestmark = pytest.mark.integration


def test_every_service_answers(stack: Stack) -> None:
    assert stack.kafka.missing() is None
    assert stack.zookeeper.missing() is None
    assert stack.s3.missing() is None
