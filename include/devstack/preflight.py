"""The requirements of the local stack. Each error message names what was found and the remedy."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from waybill.base.errors import StackError

MIN_FREE_MB = 4096
_JAVA_VERSIONS = (17, 21)
_JAVA_REMEDY = (
    "Waybill needs a full JDK 17 or 21 (Spark and Kafka run on it). On Debian or Ubuntu: "
    "apt-get install openjdk-17-jdk-headless. Then set JAVA_HOME to it, or put its bin/ first on PATH."
)


@dataclass(frozen=True)
class Java:
    """A JDK that Spark 4 and Kafka run on."""

    binary: Path
    home: Path
    version: int


def check(directory: Path) -> Java:
    """Check all requirements, and return the Java to use. Raises `StackError` with the remedy."""
    check_platform()
    check_python()
    check_disk(directory)
    return find_java()


def check_platform(platform: str = sys.platform) -> None:
    """Raise `StackError` unless this is Linux: the guardian needs prctl and pidfd."""
    if platform != "linux":
        raise StackError(
            f"the local stack runs on Linux, and this is {platform!r}. "
            "Use docker-compose.yaml, a Linux container or WSL 2."
        )


def check_python(version: tuple[int, int] = (sys.version_info[0], sys.version_info[1])) -> None:
    """Raise `StackError` unless this is Python 3.11: the lock file is compiled for it."""
    if version != (3, 11):
        raise StackError(
            f"this is Python {version[0]}.{version[1]}, and Waybill's lock file is for 3.11. Make the environment "
            "with: make venv PYTHON=/path/to/python3.11"
        )


def check_disk(directory: Path, *, min_free_mb: int = MIN_FREE_MB) -> None:
    """Raise `StackError` if too little disk is free in `directory`, which may not exist yet.

    The demo needs about 1.5 GB. A broker whose disk is full stops and does not recover by itself.
    """
    existing = next(each for each in (directory.absolute(), *directory.absolute().parents) if each.exists())
    free_mb = shutil.disk_usage(existing).free // 2**20
    if free_mb < min_free_mb:
        raise StackError(
            f"only {free_mb:,} MB are free in {directory}, and the stack needs {min_free_mb:,} MB. Free some, or put "
            "the state on another disk: WAYBILL_STATE_DIR=/path/on/another/disk"
        )


def find_java() -> Java:
    """Return the Java of JAVA_HOME, else that on PATH. Raises `StackError` unless it is a full JDK 17 or 21."""
    binary = _java_binary()
    settings = _run(binary, "-XshowSettings:properties", "-version")
    version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", settings)
    home = re.search(r"java\.home = (.+)", settings)
    if version is None or home is None:
        raise StackError(f"{binary} does not print its properties like Java:\n{settings.strip()[:500]}\n{_JAVA_REMEDY}")
    if int(version[1]) not in _JAVA_VERSIONS:
        raise StackError(f"{binary} is Java {version[1]}. {_JAVA_REMEDY}")
    if "jdk.incubator.vector" not in _run(binary, "--list-modules"):
        raise StackError(
            f"{binary} is Java {version[1]} without the module jdk.incubator.vector, which Spark 4 needs: a reduced "
            f"runtime, not a full JDK. {_JAVA_REMEDY}"
        )
    return Java(binary=binary, home=Path(home[1].strip()), version=int(version[1]))


def _java_binary() -> Path:
    if java_home := os.environ.get("JAVA_HOME"):
        binary = Path(java_home) / "bin" / "java"
        if not os.access(binary, os.X_OK):
            raise StackError(f"JAVA_HOME is {java_home}, but it contains no bin/java. {_JAVA_REMEDY}")
        return binary
    binary_path = shutil.which("java")
    if binary_path is None:
        raise StackError(f"no java found on PATH, and JAVA_HOME is not set. {_JAVA_REMEDY}")
    return Path(binary_path)


def _run(binary: Path, *arguments: str) -> str:
    try:
        done = subprocess.run([binary, *arguments], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StackError(f"{binary} does not start: {error}. {_JAVA_REMEDY}") from error
    return done.stdout + done.stderr
