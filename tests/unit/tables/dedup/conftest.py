"""A fixture for tests of a table's history."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.table import Table


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    catalog = InMemoryCatalog("tests", warehouse=tmp_path.as_uri())
    catalog.create_namespace("tests")
    yield catalog.create_table("tests.flights", pa.schema([("offset", pa.int64())]))
    catalog.close()
