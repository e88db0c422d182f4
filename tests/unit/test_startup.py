"""What a plan and a lane with nothing new do not import: they start in new processes every minute."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HEAVY = {
    *("airflow", "boto3", "botocore", "croniter", "fastavro", "google.protobuf", "numba", "numpy", "obstore", "pandas"),
    *("pyarrow", "pyiceberg", "pyspark", "requests", "rich", "s3transfer", "tenacity", "typer"),
    *("kafka.admin", "kafka.consumer", "kafka.producer", "kafka.record", "kafka.protocol.admin.acl"),
}

CONFIG = """
version: 1
storage: {bucket: archive}
streams:
  flights:
    topics: [flights]
    parser: {event_time: {field: at}, message_id: id}
    columns: {amount: double}
    table: analytics.flights
    partition: {schedule: "5 * * * *"}
    dedup: {}
"""

CODE = f"""
import json, sys
from waybill.config.models import load_config
from waybill.config.connections import S3Endpoint
from waybill.services.coordination import Coordinator
from waybill.archive.ingest import plan_lanes, run_lane
from waybill.services.kafka.kafka import KafkaSource
from waybill.services.store import Store
config = load_config()
with Store(S3Endpoint(endpoint_url="http://127.0.0.1:1", access_key="a", secret_key="b"), "archive"):
    pass
print(json.dumps(sorted({HEAVY!r} & set(sys.modules))))
"""


def test_plan_and_lane_with_nothing_new_import_no_heavy_library(tmp_path: Path) -> None:
    path = tmp_path / "streams.yaml"
    path.write_text(CONFIG)
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env={"WAYBILL_CONFIG": str(path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
