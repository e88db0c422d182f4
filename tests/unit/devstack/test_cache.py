"""A directory of the cache is complete or absent, even if a process is killed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from devstack.cache import cache_dir, cached

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_directory_is_built_once() -> None:
    built = []

    def build(target: Path) -> None:
        built.append(target)
        (target / "file").write_text("content")

    assert cached("thing", build) == cached("thing", build) == cache_dir() / "thing"
    assert (cache_dir() / "thing" / "file").read_text() == "content"
    assert len(built) == 1


def test_failed_build_leaves_nothing_and_can_be_repeated() -> None:
    def fail(target: Path) -> None:
        (target / "half").touch()
        raise RuntimeError("network")

    with pytest.raises(RuntimeError, match="network"):
        cached("thing", fail)
    assert not (cache_dir() / "thing").exists()
    assert not list(cache_dir().glob("*.partial-*"))
    assert cached("thing", lambda target: (target / "whole").touch()).joinpath("whole").exists()


def test_leftovers_of_a_killed_build_are_removed_by_the_next() -> None:
    abandoned = cache_dir() / "thing.partial-abc"
    abandoned.mkdir()
    cached("thing", lambda _: None)
    assert not abandoned.exists()


def test_second_builder_waits_for_the_first_and_uses_its_result() -> None:
    started, waiting, builds = threading.Event(), threading.Event(), []

    def build(target: Path) -> None:
        builds.append(target)
        started.set()
        assert waiting.wait(10)

    first = threading.Thread(target=cached, args=("thing", build))
    first.start()
    assert started.wait(10)
    assert cached("thing", build, on_wait=waiting.set).is_dir()
    first.join()
    assert len(builds) == 1
