"""The images that the Dockerfile and docker-compose.yaml name, and their digests.

A digest stands behind the tag, `postgres:16-bookworm@sha256:…`, in the file that names the image, so Docker itself
refuses another image. `images-without-digest.txt` lists the images that have none yet: only a machine that reaches
their registry can find them out.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

from waybill.base.errors import StackError

FILES = ("Dockerfile", "docker-compose.yaml")
WITHOUT_DIGEST = Path(__file__).with_name("images-without-digest.txt")

_SECONDS = 120
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
# `FROM image AS name` of Dockerfiles, also of one inside docker-compose.yaml, and `image: name` of Compose.
_FROM = re.compile(r"^(\s*FROM\s+(?:--\S+\s+)*)(\S+)(.*)$")
_IMAGE = re.compile(r"^(\s*(?:-\s+)?image:\s*)([^\s#]+)(.*)$")
_OWN = "waybill-"
"""Begins the names of the images that are built here."""
_NOT_PULLED = {"scratch"}


def images(text: str) -> list[str]:
    """Return the images that a file names, with their digests if they have some, less those that are built here."""
    stages = set(re.findall(r"^\s*FROM\s+.*\s+AS\s+(\S+)\s*$", text, re.MULTILINE))
    found = [match[2].strip("\"'") for line in text.splitlines() if (match := _FROM.match(line) or _IMAGE.match(line))]
    own = {each for each in found if each.startswith(_OWN)} | stages | _NOT_PULLED
    return list(dict.fromkeys(each for each in found if each not in own))


def has_digest(image: str) -> bool:
    """Return whether an image is named by its digest, too."""
    _, _, digest = image.partition("@")
    return _DIGEST.fullmatch(digest) is not None


def without_digest(root: Path, files: Iterable[str] = FILES) -> set[str]:
    """Return the images of a checkout that have no digest."""
    return {image for name in files for image in images((root / name).read_text()) if not has_digest(image)}


def listed(path: Path = WITHOUT_DIGEST) -> set[str]:
    """Return the images that are listed as not yet resolved."""
    return {line for line in path.read_text().splitlines() if line and not line.startswith("#")}


def lock_images(root: Path, resolve: Callable[[str], str], path: Path = WITHOUT_DIGEST) -> list[str]:
    """Look up the digest of each image, write it behind the tag, and return the images as they are now.

    Nothing is written unless all digests were found. `resolve` returns the digest of `name:tag`, or raises.
    """
    texts = {name: (root / name).read_text() for name in FILES}
    named = list(dict.fromkeys(image for text in texts.values() for image in images(text)))
    tags = list(dict.fromkeys(image.partition("@")[0] for image in named))
    digests = {tag: resolve(tag) for tag in tags}
    for name, text in texts.items():
        (root / name).write_text("".join(_with_digest(line, digests) for line in text.splitlines(keepends=True)))
    comments = [line for line in path.read_text().splitlines(keepends=True) if line.startswith("#")]
    path.write_text("".join(comments))
    return [f"{tag}@{digest}" for tag, digest in digests.items()]


def _with_digest(line: str, digests: dict[str, str]) -> str:
    match = _FROM.match(line) or _IMAGE.match(line)
    tag = match[2].strip("\"'").partition("@")[0] if match else ""
    if match is None or tag not in digests:
        return line
    return f"{match[1]}{tag}@{digests[tag]}{match[3]}\n"


def digest_of(tag: str) -> str:
    """Return the digest of an image's index, for all platforms, as `docker buildx` reads it from the registry.

    Raises `StackError` with Docker's message.
    """
    command = ["docker", "buildx", "imagetools", "inspect", tag, "--format", "{{json .Manifest}}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StackError(f"cannot look up the digest of {tag}: {error}. It needs Docker with buildx") from error
    if done.returncode != 0:
        reason = done.stderr.strip()[-500:]
        raise StackError(f"cannot look up the digest of {tag} with `docker buildx imagetools inspect`: {reason}")
    try:
        digest = str(json.loads(done.stdout)["digest"])
    except (ValueError, KeyError, TypeError) as error:
        raise StackError(f"docker buildx answers no digest of {tag}: {done.stdout[:200]!r}") from error
    if not _DIGEST.fullmatch(digest):
        raise StackError(f"docker buildx answers {digest!r} for {tag}, which is no digest")
    return digest
