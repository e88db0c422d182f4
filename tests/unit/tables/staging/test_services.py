"""What the streams of an application share."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, cast

import pytest

from waybill.base.errors import CoordinationUnavailable
from waybill.config.models import Config
from waybill.tables.staging import services
from waybill.tables.staging.services import StagingServices, services_of


class ArchiveOfTwoTopics:
    listed = 0

    def topics(self) -> list[str]:
        self.listed += 1
        return ["a", "b"]


def config_of(*names: str) -> Config:
    stream = {"parser": {"event_time": {"field": "at"}}}
    streams = {name: {**stream, "topics": [name], "table": f"x.{name}"} for name in names}
    return Config.model_validate({"version": 1, "storage": {"bucket": "archive"}, "streams": streams})


CONFIG = config_of("a", "b", "c")


def shared(archive: Any) -> StagingServices:
    return StagingServices(CONFIG, archive, cast("Any", None), ExitStack())


def test_the_archive_is_listed_once_for_all_streams() -> None:
    archive = ArchiveOfTwoTopics()
    opened = shared(archive)
    assert [opened.archived_topics(CONFIG.stream(name)) for name in "abc"] == [["a"], ["b"], []]
    assert archive.listed == 1


def test_services_that_are_shared_are_used_and_stay_open() -> None:
    opened = shared(ArchiveOfTwoTopics())
    with services_of(CONFIG, opened) as found:
        assert found is opened


def test_without_zookeeper_a_run_continues_without_committed_offsets(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise CoordinationUnavailable("no session")

    monkeypatch.setattr(services.ZooKeeperSession, "of", refuse)
    assert shared(ArchiveOfTwoTopics()).committed_offsets("a") == {}
    assert "a: continuing without the committed offsets: no session" in caplog.text
