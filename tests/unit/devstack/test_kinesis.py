"""The Kinesis emulator's download is the one that Waybill was tested with, or none."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from devstack import kinesis
from devstack.kinesis import KinesisEmulator, emulator_home, node_binary
from waybill.base.errors import StackError


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "waybill"


def npm_that(monkeypatch: pytest.MonkeyPatch, exit_code: int, archive: bytes | None) -> None:
    """Replace npm by one that ends with an exit code and may write an archive."""

    def run(command: tuple[str, ...], *, cwd: Path, **_: Any) -> subprocess.CompletedProcess[str]:
        if archive is not None:
            (cwd / "kinesis-local.tgz").write_bytes(archive)
        return subprocess.CompletedProcess(command, exit_code, "", "npm error: no network")

    monkeypatch.setattr(kinesis.subprocess, "run", run)


def test_another_archive_is_refused(monkeypatch: pytest.MonkeyPatch, empty_cache: Path) -> None:
    npm_that(monkeypatch, 0, b"something else")
    with pytest.raises(StackError, match="SHA-512"):
        emulator_home(lambda _: None)
    assert not [path for path in empty_cache.iterdir() if path.is_dir()]


def test_a_failed_download_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    npm_that(monkeypatch, 1, None)
    with pytest.raises(StackError, match=r"no network(.|\n)*NPM_CONFIG_REGISTRY"):
        emulator_home(lambda _: None)


def test_the_emulator_runs_from_its_own_folder(tmp_path: Path) -> None:
    emulator = KinesisEmulator(tmp_path / "home", tmp_path / "state", 20001, 20002)
    (spec,) = emulator.specs(tmp_path)
    assert spec.directory == tmp_path / "home"
    assert spec.command == (str(node_binary()), "main.js")
    assert spec.environment["KINESIS_MOCK_PLAIN_PORT"] == "20001"
