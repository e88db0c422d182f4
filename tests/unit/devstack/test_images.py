"""The images of the Dockerfile and of docker-compose.yaml have a digest, or are listed as not yet resolved."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from devstack.supply_chain import images
from waybill.base.errors import StackError

ROOT = Path(__file__).parents[3]
DIGEST = f"sha256:{'ab' * 32}"
DOCKERFILE = """FROM --platform=linux/amd64 python:3.11 AS base
FROM base
COPY --from=base /x /x
"""
COMPOSE = """services:
  a: {build: .}
  own:
    image: waybill-airflow
  db:
    image: postgres:16  # the oldest
  s3:
    build:
      dockerfile_inline: |
        FROM golang:1.26 AS build
        FROM scratch
"""


def test_each_image_has_a_digest_or_is_listed_as_not_yet_resolved() -> None:
    assert images.without_digest(ROOT) == images.listed()


def test_the_images_of_a_file_are_those_that_are_pulled() -> None:
    assert images.images(DOCKERFILE) == ["python:3.11"]
    assert images.images(COMPOSE) == ["postgres:16", "golang:1.26"]


def test_all_digests_are_written_behind_the_tags_and_renewed(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    (tmp_path / "docker-compose.yaml").write_text(COMPOSE)
    unresolved = tmp_path / "images.txt"
    unresolved.write_text("# why\npython:3.11\npostgres:16\ngolang:1.26\n")
    old = f"sha256:{'0' * 64}"
    images.lock_images(tmp_path, lambda _: old, unresolved)
    found = images.lock_images(tmp_path, lambda _: DIGEST, unresolved)
    assert found == [f"{name}@{DIGEST}" for name in ("python:3.11", "postgres:16", "golang:1.26")]
    assert images.without_digest(tmp_path) == images.listed(unresolved) == set()
    assert unresolved.read_text() == "# why\n"
    written = (tmp_path / "docker-compose.yaml").read_text()
    assert written == COMPOSE.replace("postgres:16", f"postgres:16@{DIGEST}").replace(
        "golang:1.26", f"golang:1.26@{DIGEST}"
    )
    assert (
        f"FROM --platform=linux/amd64 python:3.11@{DIGEST} AS base\nFROM base\n"
        in (tmp_path / "Dockerfile").read_text()
    )


def test_nothing_is_written_if_one_image_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    (tmp_path / "docker-compose.yaml").write_text(COMPOSE)

    def resolve(tag: str) -> str:
        if tag == "golang:1.26":
            raise StackError("no registry")
        return DIGEST

    with pytest.raises(StackError, match="no registry"):
        images.lock_images(tmp_path, resolve)
    assert (tmp_path / "Dockerfile").read_text() == DOCKERFILE


@pytest.mark.parametrize(
    ("done", "complaint"),
    [
        (subprocess.CompletedProcess([], 1, "", "ERROR: no such host"), "no such host"),
        (subprocess.CompletedProcess([], 0, "{}", ""), "no digest of postgres:16"),
        (subprocess.CompletedProcess([], 0, "Name: x", ""), "no digest of postgres:16"),
        (subprocess.CompletedProcess([], 0, '{"digest": "sha256:12"}', ""), "which is no digest"),
        (FileNotFoundError("docker"), "needs Docker"),
    ],
)
def test_an_answer_without_a_digest_is_refused(
    monkeypatch: pytest.MonkeyPatch, done: subprocess.CompletedProcess[str] | OSError, complaint: str
) -> None:
    def run(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        if isinstance(done, OSError):
            raise done
        return done

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(StackError, match=complaint):
        images.digest_of("postgres:16")
    monkeypatch.setattr(
        subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, f'{{"digest": "{DIGEST}"}}', "")
    )
    assert images.digest_of("postgres:16") == DIGEST
