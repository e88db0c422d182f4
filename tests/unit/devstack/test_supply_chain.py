"""What is downloaded is compared with what was locked: packages of Python and jars."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from devstack.jars import DIGESTS, check_digests
from waybill.errors import StackError

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-dev.txt", "requirements-spark.txt"])
def test_each_locked_package_has_a_version_and_a_hash(name: str) -> None:
    text = (ROOT / name).read_text().replace("\\\n", " ")
    locked = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    assert len(locked) > 40
    for line in locked:
        assert re.match(r"[A-Za-z0-9._-]+(\[.*\])?==", line), line
        assert "--hash=sha256:" in line, line
    assert not re.search(r"^--(extra-)?index-url", text, re.MULTILINE)


@pytest.mark.parametrize("name", ["include/devstack/make_venv.sh", "Dockerfile"])
def test_locks_are_installed_with_their_hashes_only(name: str) -> None:
    for line in (ROOT / name).read_text().splitlines():
        if re.search(r"install.* -r ", line):
            assert "--require-hashes" in line, line


def test_a_jar_with_another_digest_and_one_that_is_not_listed_are_refused(tmp_path: Path) -> None:
    name = DIGESTS.read_text().split()[1]
    (tmp_path / name).write_bytes(b"another")
    with pytest.raises(StackError, match=f"{re.escape(name)} has SHA-256 .* expects"):
        check_digests(tmp_path, is_complete=False)
    (tmp_path / name).unlink()
    (tmp_path / "new-1.0.jar").write_bytes(b"new")
    check_digests(tmp_path, is_complete=False)
    with pytest.raises(StackError, match=r"new-1\.0\.jar .* is not in jars\.sha256"):
        check_digests(tmp_path, is_complete=True)
