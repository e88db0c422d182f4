"""What is downloaded is compared with what was locked: packages of Python and jars."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from devstack.jars import DIGESTS, ICEBERG, KAFKA, TEST_DIGESTS, JarSet, check_digests, resolve
from devstack.preflight import Java
from waybill.base.errors import StackError

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("name", "at_least"),
    [
        ("requirements.txt", 40),
        ("requirements-dev.txt", 40),
        ("requirements-spark.txt", 40),
        ("requirements-image.txt", 2),
        ("tests/integration/data/corpora.txt", 2),
    ],
)
def test_each_locked_package_has_a_version_and_a_hash(name: str, at_least: int) -> None:
    text = (ROOT / name).read_text().replace("\\\n", " ")
    locked = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    assert len(locked) >= at_least
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
    for source in (DIGESTS, TEST_DIGESTS):
        name = source.read_text().split()[1]
        (tmp_path / name).write_bytes(b"another")
        with pytest.raises(StackError, match=rf"{re.escape(name)} has SHA-256 .* {source.name} expects"):
            check_digests(tmp_path)
        (tmp_path / name).unlink()
    (tmp_path / "new-1.0.jar").write_bytes(b"new")
    with pytest.raises(StackError, match=r"new-1\.0\.jar .* is not in jars\.sha256.*test_jars\.sha256"):
        check_digests(tmp_path)


def test_each_set_of_jars_is_compared_whichever_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ivy, replaced by a program that writes a jar which no list has, is refused for any set."""

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        target = Path(command[command.index("-retrieve") + 1]).parent
        (target / "planted-1.0.jar").write_bytes(b"planted")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(subprocess, "run", run)
    java = Java(Path("/java"), Path("/"), 17)
    for jar_set in (KAFKA, ICEBERG, JarSet("tools", ("a:b:1",), 1)):
        with pytest.raises(StackError, match=r"planted-1\.0\.jar"):
            resolve(jar_set, java, lambda _: None)
    assert not list(tmp_path.glob("waybill/jars-*/"))


# --- the next download ------------------------------------------------------------------------------------------------

# A line that downloads something, and what must be in it, or within 20 lines of it, so that what comes is compared.
_NEAR_LINES = 20
_LONGEST_LINE = 1_000
DOWNLOADS = [
    (r"pip[\"', ]+install|pip_install ", r"--require-hashes|_hashed\(|-e \.", "a lock with hashes"),
    (r"\bgo[\"', ]+(install|get|run)\b", "$.", "a module with a go.sum, and `go build -mod=readonly`"),
    (r"\bgo[\"', ]+build\b", "-mod=readonly", "-mod=readonly"),
    (
        r"\b(npm|npm-cli\.js|str\(npm\))[\"', )]+(install|pack|exec|ci)\b|\bnpx\b",
        "_SHA512",
        "the SHA-512 of the archive",
    ),
    (r"\b(curl|wget)\b|urlretrieve", "sha256", "the SHA-256 of the file"),
    (r"ivy\.Main", r"check_digests|jars\.sha256", "check_digests"),
    (r"\buv[\"', ]+(tool|run)\b|\bpipx\b", "$.", "a lock with hashes"),
    (r"git[\"', ]+clone", "$.", "a package with a hash"),
    (r"urlopen\([\"']https?://(?!127\.0\.0\.1|localhost)|urlopen\(_?[A-Z]", "sha256", "the SHA-256 of the file"),
]
_ANY = re.compile("|".join(f"(?:{download})" for download, _, _ in DOWNLOADS))
# Packages of a user's own, which only they know: `make spark-env SPARK_ENV_ARGS="--extra FILE"`. And Debian's packages,
# whose index is signed, are installed by apt-get, which is not in the list above.
OF_USERS = {("include/devstack/spark_env.py", 'install = [uv, "pip", "install"')}


def _sources() -> Iterator[Path]:
    for folder in ("include/devstack", "tests", "bench", ".ci"):
        yield from (
            path
            for path in sorted((ROOT / folder).rglob("*"))
            if path.is_file() and (path.suffix in {".py", ".sh", ".yaml", ".yml"} or path.parent.name == ".ci")
        )
    yield from (ROOT / name for name in ("Dockerfile", "docker-compose.yaml", "Makefile"))


def _unchecked(text: str) -> Iterator[tuple[str, str]]:
    """Return each line that downloads something with nothing near it that compares it, and what is missing."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if len(line) > _LONGEST_LINE or not _ANY.search(line):  # such a long one is minified
            continue
        near = lines[max(0, number - _NEAR_LINES) : number + _NEAR_LINES + 1]
        code = line.split("#", 1)[0]
        for download, proof, missing in DOWNLOADS:
            if re.search(download, code) and not re.search(proof, "\n".join(near)):
                yield line.strip(), missing


def test_each_download_is_compared_with_a_digest() -> None:
    found = [
        f"{path.relative_to(ROOT)}: `{line}` needs {missing}"
        for path in _sources()
        if path != Path(__file__)
        for line, missing in _unchecked(path.read_text())
        if not any(str(path.relative_to(ROOT)) == name and start in line for name, start in OF_USERS)
    ]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "RUN pip install requests==2.0",
        'subprocess.run([sys.executable, "-m", "pip", "install", "x"])',
        'command = ["uv", "pip", "install", "x"]',
        'command = ["go", "install", "example.org/x@v1"]',
        "go build ./...",
        "npm install axe-core",
        'subprocess.run(["npm", "install"])',
        "curl -sSL https://example.org/x.tgz | tar xz",
        "urllib.request.urlretrieve(URL, path)",
        'urllib.request.urlopen("https://example.org/x.jar")',
        "java -cp x org.apache.ivy.Main -retrieve y",
        "RUN git clone https://example.org/x",
    ],
)
def test_the_next_download_without_a_digest_is_found(line: str) -> None:
    assert list(_unchecked(line))


@pytest.mark.parametrize("folder", ["include/devstack/versitygw", "tests/integration/data/promtool"])
def test_the_modules_of_go_are_hashed_in_the_version_that_is_named(folder: str) -> None:
    module = (ROOT / folder / "go.mod").read_text()
    (package,) = re.findall(r"^tool (\S+)$", module, re.MULTILINE)
    (required,) = [line.split() for line in module.splitlines() if package.startswith(line.strip().split(" ")[0] + "/")]
    hashes = (ROOT / folder / "go.sum").read_text()
    assert re.search(rf"^{re.escape(required[0])} {re.escape(required[1])} h1:\S{{44}}$", hashes, re.MULTILINE)
    names = {"include/devstack/versitygw": "include/devstack/s3.py"}
    user = (ROOT / names.get(folder, "tests/integration/test_metrics.py")).read_text()
    assert f'_VERSION = "{required[1]}"' in user
