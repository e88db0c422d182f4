"""Missing requirements are refused before a server starts, with a remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from devstack import preflight
from waybill.base.errors import StackError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def java_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set JAVA_HOME to a directory without Java; `fake_java` adds one."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (tmp_path / "bin").mkdir()
    return tmp_path


def fake_java(home: Path, version: str, modules: str = "java.base@17\njdk.incubator.vector@17") -> None:
    binary = home / "bin" / "java"
    binary.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = --list-modules ]; then echo "{modules}"; exit; fi\n'
        f'echo "    java.home = {home}\n    java.specification.version = {version}" >&2\n'
    )
    binary.chmod(0o755)


@pytest.mark.parametrize("version", ["17", "21"])
def test_full_jdk_of_java_home_is_accepted(java_home: Path, version: str) -> None:
    fake_java(java_home, version)
    java = preflight.find_java()
    assert (java.version, java.home, java.binary) == (int(version), java_home, java_home / "bin" / "java")


@pytest.mark.parametrize("version", ["1.8", "11", "25"])
def test_java_of_another_version_is_refused_by_name(java_home: Path, version: str) -> None:
    fake_java(java_home, version)
    with pytest.raises(StackError, match=rf"{java_home}/bin/java is Java {version.removeprefix('1.')}\..*JDK 17 or 21"):
        preflight.find_java()


def test_reduced_runtime_is_refused(java_home: Path) -> None:
    fake_java(java_home, "17", modules="java.base@17")
    with pytest.raises(StackError, match=r"without the module jdk.incubator.vector.*openjdk-17-jdk"):
        preflight.find_java()


def test_java_home_without_java_is_refused(java_home: Path) -> None:
    with pytest.raises(StackError, match=r"JAVA_HOME is .*contains no bin/java.*set JAVA_HOME"):
        preflight.find_java()


def test_something_else_called_java_is_refused(java_home: Path) -> None:
    (java_home / "bin" / "java").write_text("#!/bin/sh\necho hello\n")
    (java_home / "bin" / "java").chmod(0o755)
    with pytest.raises(StackError, match=r"does not print its properties like Java:\nhello"):
        preflight.find_java()


def test_missing_java_is_refused_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StackError, match=r"no java found on PATH.*apt-get install openjdk-17-jdk-headless"):
        preflight.find_java()


def test_java_on_path_is_found_without_java_home(java_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(java_home, "17")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", f"{java_home / 'bin'}:/usr/bin:/bin")
    assert preflight.find_java().binary == java_home / "bin" / "java"


def test_other_python_is_refused() -> None:
    with pytest.raises(StackError, match=r"this is Python 3\.12.*make venv PYTHON="):
        preflight.check_python((3, 12))


def test_other_system_is_refused() -> None:
    with pytest.raises(StackError, match=r"runs on Linux, and this is 'darwin'.*docker-compose"):
        preflight.check_platform("darwin")


def test_full_disk_is_refused_before_the_directory_is_made(tmp_path: Path) -> None:
    state = tmp_path / "not" / "yet"
    with pytest.raises(StackError, match=r"only [\d,]+ MB are free in .*not/yet.*WAYBILL_STATE_DIR="):
        preflight.check_disk(state, min_free_mb=10**9)
    preflight.check_disk(state, min_free_mb=1)
    assert not state.exists()
