"""Topic names that Kafka allows but that have a meaning in paths are archived under their own prefix only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from archived_stream import waybill
from ingest_scenes import STREAM, Archive, Cluster

from devstack import Stack
from devstack.s3 import S3Kind
from waybill.config.names import TopicPartition
from waybill.records.batches.encode import Record
from waybill.services.store import Store

pytestmark = [pytest.mark.integration, pytest.mark.stack_alone]

TOPICS = ("...", "." * 249, f"{'..-' * 82}abc", "-rf", "..backup", "backup", "offsets", "0")
"""Kafka forbids only `.` and `..`."""


def every_key(store: Store) -> set[str]:
    pages = store.client.get_paginator("list_objects_v2").paginate(Bucket=store.bucket)
    return {entry["Key"] for page in pages for entry in page.get("Contents", [])}


def every_file(stack: Stack) -> set[Path]:
    """Return the files of the S3 server, in which a hostile name could leave its prefix."""
    if stack.s3.program.kind is not S3Kind.VERSITYGW:
        return set()
    found = {path.relative_to(stack.s3.directory) for path in stack.s3.directory.rglob("*") if path.is_file()}
    return {path for path in found if ".vgwlocks" not in path.parts}  # internal files of versitygw


def test_topics_with_path_like_names_are_archived_under_their_prefix(
    stack: Stack, cluster: Cluster, topic_name: str, tmp_path: Path
) -> None:
    archive = Archive(stack, topic_name, TOPICS)
    with archive.store() as store:
        keys, files = every_key(store), every_file(stack)
        with archive.services() as services:
            nodes = set(services.coordinator.session.client.get_children("/"))
        for number, topic in enumerate(TOPICS):
            cluster.create(topic)
            cluster.produce(TopicPartition(topic, 0), [(None, b"%d-%d" % (number, each)) for each in range(3)])
        try:
            _archive_and_read_back(archive, tmp_path)
        finally:
            for topic in TOPICS:
                cluster.delete(topic)

        new = every_key(store) - keys
        assert {key.removeprefix(f"{topic_name}/backup/").split("/")[0] for key in new if "/backup/" in key} >= {
            *TOPICS
        }
        assert all(key.startswith(f"{topic_name}/") for key in new)
        inside = Path("data", stack.bucket, topic_name)
        assert [path for path in every_file(stack) - files if not path.is_relative_to(inside)] == []
        with archive.services() as services:
            client = services.coordinator.session.client
            assert set(client.get_children("/")) - nodes <= {"waybill"}
            base = f"/waybill{services.coordinator.paths.offsets}"
            assert set(client.get_children(base)) == set(TOPICS)


def _archive_and_read_back(archive: Archive, directory: Path) -> None:
    report = archive.run()
    assert [each.failure for each in report.failures] == []
    assert report.messages == 3 * len(TOPICS)
    for number, topic in enumerate(TOPICS):
        found: list[Record] = archive.messages(TopicPartition(topic, 0))
        assert [record.value for record in found] == [b"%d-%d" % (number, each) for each in range(3)]
    assert archive.run().messages == 0
    file = directory / "streams.yaml"
    file.write_text(archive.config.model_dump_json(exclude_defaults=True))
    config = {"WAYBILL_CONFIG": str(file)}
    verified = waybill("verify", "--no-table", "--json", **config)
    assert (verified.code, verified.err) == (0, "")
    for topic in TOPICS:
        listed = waybill("ls", STREAM, "--json", "--", topic, **config)
        assert listed.code == 0, listed.err
        assert [(each["topic"], each["next_offset"]) for each in json.loads(listed.out)] == [(topic, 3)]
    for wrong in ("..", ".", "a/b", "../x/0", "a\nb"):
        refused = waybill("ls", STREAM, "--", wrong, **config)
        assert refused.code == 1
        assert refused.err.startswith("error: ")
        assert refused.err.count("\n") == 1


def test_objects_under_names_that_are_no_topics_are_ignored_with_a_warning(
    stack: Stack, cluster: Cluster, topic_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Everybody who can write to the bucket can create such objects. The warning quotes the name."""
    archive = Archive(stack, topic_name, {"regex": ".*"})
    with archive.store() as store:
        for name in ("a b", "%2e%2e", "ä"):
            store.create_if_absent(f"{topic_name}/backup/{name}/1_0_00000000000000000000.kafka", b"x")
        store.create_if_absent(f"{topic_name}/backup/{topic_name}/1_0_00000000000000000000.kafka", b"x")
        assert store.topics() == [topic_name]
    assert "'a b' is not a Kafka topic name; ignored" in caplog.text
