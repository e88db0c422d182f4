"""Streams of one config that share Spark applications: an archive and tables for each, and the jobs by spark-submit."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from partition_scenes import event, junk
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from waybill.config import names
from waybill.config.models import Config
from waybill.config.names import BackupName, TopicPartition
from waybill.records.batches.encode import Record, encode_batch
from waybill.services.store import Store
from waybill.tables.iceberg import catalog_of
from waybill.tables.spark.group_results import GroupResults

SPARK_JOBS = Path(__file__).parents[2] / "spark_jobs"

PARSERS = """
import os, signal
from waybill.parsers.examples import KeyTime

class Raises(KeyTime):
    def parse(self, messages):
        raise KeyError("at")

class Dies(KeyTime):
    def parse(self, messages):
        os.kill(os.getpid(), signal.SIGKILL)
"""
"""A module with parsers that fail while they parse."""
PARSERS_FILE = "parsers_of_groups.py"
"""The module's file in the scene's folder."""


@dataclass
class GroupScene:
    """Streams with one topic-partition each, and the folder with their config."""

    config: Config
    store: Store
    catalog: Catalog
    folder: Path

    def put(self, stream: str, offsets: range, *, broken: bool = False) -> None:
        """Create a backup object of one message for each offset; `broken` ones cannot be parsed."""
        make = junk if broken else event
        records: Sequence[Record] = [make(offset, 1_700_000_000_000 + offset) for offset in offsets]
        tp = TopicPartition(stream, 0)
        name = BackupName(tp.topic, self.config.stream(stream).generation, tp.partition, offsets[0])
        self.store.create_if_absent(name.key(self.store.prefix), encode_batch(records))

    def table(self, stream: str, unique: bool = False) -> Table:
        found = self.config.stream(stream)
        return self.catalog.load_table(names.unique_table_name(found.table) if unique else found.table)

    def rows(self, stream: str, unique: bool = False) -> int:
        return self.table(stream, unique).scan().to_arrow().num_rows

    def submit(self, job: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a job for the default group by spark-submit."""
        command = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]"]
        command += [str(SPARK_JOBS / f"{job}.py"), "--group", "default", "--config", str(self.folder / "streams.yaml")]
        path = os.pathsep.join(filter(None, [str(self.folder), os.environ.get("PYTHONPATH")]))
        return subprocess.run(
            [*command, *arguments],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )

    def results(self, job: str, run: str) -> GroupResults:
        found = GroupResults.load(self.store, "default", job, run)
        assert found is not None
        return found


@contextmanager
def new_group_scene(folder: Path, **streams: dict[str, Any]) -> Iterator[GroupScene]:
    """Yield a scene of these streams, each given as what differs from a plain one with dedup."""
    unique = uuid.uuid4().hex[:12]
    plain = {
        "parser": {"name": "json", "event_time": {"field": "at", "format": "epoch_ms"}, "message_id": "id"},
        "partition_by": "day",
        "dedup": {},
    }
    document = {
        "version": 1,
        "storage": {"bucket": os.environ["WAYBILL_BUCKET"], "prefix": f"tests/{unique}"},
        "streams": {
            name: {**plain, "topics": [name], "table": f"tests.{name}_{unique}", **changes}
            for name, changes in streams.items()
        },
    }
    (folder / "streams.yaml").write_text(yaml.safe_dump(document))
    (folder / PARSERS_FILE).write_text(PARSERS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        config = Config.model_validate(document)
        with Store.of(config.storage) as store, catalog_of(config) as catalog:
            yield GroupScene(config, store, catalog, folder)
        sys.modules.pop(Path(PARSERS_FILE).stem, None)
