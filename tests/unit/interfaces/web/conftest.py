"""Fixtures of the tests of the pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pages_under_test import Pages


@pytest.fixture
def pages() -> Iterator[Pages]:
    """Return the app over a sample status document."""
    made = Pages()
    yield made
    made.reader.close()
