"""The Python environment of Spark's executors, as one archive that `spark-submit --archives` ships to them.

It contains only what tasks need: no Airflow, and no pyspark, which each worker has. Its `bin/python` is a link to the
interpreter that this environment was made from, so the nodes need the same Python at the same path. Everything else is
in the archive, including Waybill's compiled functions.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from devstack.cache import cached
from waybill.base.errors import StackError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LEVEL = 1
"""The gzip level. Level 6 takes four times as long, and saves a tenth of the size."""

# Compiles what every task needs. Else each executor would compile it in its first seconds.
_COMPILE = """
import importlib, io, pkgutil
import waybill.archive.formats, waybill.parsers, waybill.tables.partition.tasks
from waybill.config.models import JsonParser
from waybill.records.batches.decode import decode
from waybill.records.batches.encode import Record, encode_batch
from waybill.records.batches.framing import read_frames
for package in (waybill.parsers, waybill.archive.formats):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
frames = read_frames(io.BytesIO(encode_batch([Record(0, 0, b"key", b'{"t":0}', (("header", b""),))])), "")
(rows,) = decode(frames, where="", first_offset=0, next_offset=1)
json = JsonParser.model_validate({"event_time": {"field": "t", "format": "epoch_ms"}})
assert waybill.parsers.build_parser(json).parse(rows).error.null_count == rows.num_rows == 1
"""


def build(
    archive: Path, requirements: Path, extra: Sequence[Path], library: Path, on_progress: Callable[[str], None]
) -> None:
    """Write the archive: the locked `requirements`, the `extra` requirements of the user's parsers, and `library`.

    `library`: the directory that contains the package `waybill`. The installed requirements are kept in the cache.

    Raises `StackError` with the output of the command that failed.
    """
    files = [requirements, *extra]
    key = hashlib.sha256("\0".join([_interpreter(), *(file.read_text() for file in files)]).encode())
    environment = cached(
        f"spark-env-{key.hexdigest()[:12]}",
        lambda target: _install(target, requirements, extra, on_progress),
        lambda: on_progress("another process is installing the same packages: waiting for it"),
    )
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{archive.name}.", dir=archive.parent) as scratch:
        package = _copy_library(library, Path(scratch))
        on_progress("compiling the functions that every task uses")
        _run([str(environment / "bin" / "python"), "-c", _COMPILE], PYTHONPATH=scratch)
        on_progress(f"writing {archive}")
        partial = Path(scratch) / "archive"
        _pack(partial, environment, package)
        partial.replace(archive)


def _interpreter() -> str:
    """Return the path of the Python behind this environment, which the nodes need at the same path."""
    return str(Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}")


def _install(target: Path, requirements: Path, extra: Sequence[Path], on_progress: Callable[[str], None]) -> None:
    from uv import find_uv_bin

    uv = find_uv_bin()
    on_progress("installing the executors' packages (half a GB)")
    _run([uv, "venv", "--quiet", "--relocatable", "--python", _interpreter(), "--clear", str(target)])
    install = [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", str(target / "bin" / "python")]
    _run([*install, "--no-deps", *_hashed(requirements), "-r", str(requirements)])
    for file in extra:
        _run([*install, "-c", str(requirements), "-r", str(file)])


def _hashed(requirements: Path) -> list[str]:
    # Also for requirements of the user's own, if they have hashes.
    return ["--require-hashes"] if "--hash=" in requirements.read_text() else []


def _copy_library(library: Path, scratch: Path) -> Path:
    """Copy the package, with modification times in whole seconds.

    Numba compares them with the times stored in its compiled code, and tar does not keep fractions of a second.
    """
    package = scratch / "waybill"
    shutil.copytree(library / "waybill", package, ignore=shutil.ignore_patterns("__pycache__"))
    for file in package.rglob("*.py"):
        seconds = int(file.stat().st_mtime)
        os.utime(file, (seconds, seconds))
    return package


def _pack(target: Path, environment: Path, package: Path) -> None:
    site = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    with tarfile.open(target, "w:gz", compresslevel=_LEVEL) as tar:
        for part in sorted(environment.iterdir()):
            if part.name not in {"CACHEDIR.TAG", ".gitignore", ".lock"}:
                tar.add(part, part.name)
        tar.add(package, f"{site}/{package.name}")


def _run(command: list[str], **environment: str) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    try:
        done = subprocess.run(
            command,
            env=inherited | _index() | environment,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StackError(f"{command[0]} failed: {error}") from error
    if done.returncode != 0:
        tail = "\n".join(f"    {line}" for line in (done.stdout + done.stderr).splitlines()[-15:])
        raise StackError(f"could not build the executors' environment: {' '.join(command[:4])} … failed:\n{tail}")


def _index() -> dict[str, str]:
    """Return the package index of pip's configuration, for uv."""
    if "UV_DEFAULT_INDEX" in os.environ:
        return {}
    pip = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    index = (
        os.environ.get("PIP_INDEX_URL")
        or subprocess.run(pip, capture_output=True, text=True, check=False).stdout.strip()
    )
    return {"UV_DEFAULT_INDEX": index} if index else {}
