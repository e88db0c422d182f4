"""Each page shows every name and text of the status document as text, whoever has typed it: Kafka, a user, Airflow.

The fuzzer of the pages (`tests/fuzz`, PAGES) covers what a request brings, and this test what the status document
brings: all of its texts at once, so a field that is added is tested without a change here.
"""

from __future__ import annotations

import dataclasses
from enum import Enum
from html.parser import HTMLParser
from typing import Any

import pytest
from pages_under_test import PREFIX, Pages
from sample_status import sample_status

from waybill.interfaces.operations.declaration import Role
from waybill.watch.promises.status import WatchStatus

EVIL = "\"'><img src=x onerror=alert(1)><script>alert(1)</script><!--</textarea></title>"
STREAM = "flights"
PATHS = ["streams", f"streams/{STREAM}", "incidents", "kafka", "replays", "cost"]


class Tags(HTMLParser):
    """The elements of a page that no template of ours has, and attributes that run code."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.injected: list[str] = []
        self.links: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = dict(attrs)
        if tag == "img" or any(name.startswith("on") for name in names):
            self.injected.append(f"<{tag} {names}>")
        if tag == "script" and "src" not in names:
            self.injected.append(f"<script> without src: {names}")
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "action")]

    def handle_comment(self, data: str) -> None:
        self.injected.append(f"<!--{data}")


def evil(value: Any, *, keep: frozenset[str] = frozenset()) -> Any:
    """Return a value with `EVIL` behind each text in it, also in keys. `keep`: texts that stay as they are."""
    if isinstance(value, Enum):
        return value
    if isinstance(value, str):
        return value if value in keep else value + EVIL
    if isinstance(value, tuple | list):
        return type(value)(evil(each, keep=keep) for each in value)
    if isinstance(value, dict):
        return {evil(key, keep=keep): evil(each, keep=keep) for key, each in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {each.name: getattr(value, each.name) for each in dataclasses.fields(value) if each.init}
        return dataclasses.replace(value, **{name: evil(each, keep=keep) for name, each in fields.items()})
    return value


def evil_status(keep: frozenset[str]) -> WatchStatus:
    status: WatchStatus = evil(sample_status(), keep=keep)
    return status


@pytest.mark.parametrize("role", [Role.VIEWER, Role.ADMIN])
@pytest.mark.parametrize("is_kept", [False, True], ids=["all-names", "names-of-streams-kept"])
@pytest.mark.parametrize("path", [*PATHS, *(f"fragments/{path}" for path in PATHS)])
def test_each_text_of_the_status_is_text_on_each_page(pages: Pages, path: str, is_kept: bool, role: Role) -> None:
    # Known names show most; the unknown ones must not do harm either.
    keep = frozenset({STREAM, *(each.name for each in sample_status().streams)}) if is_kept else frozenset()
    pages.status = evil_status(keep)
    answer = pages.client(user=f"ada{EVIL}", role=role).get(f"{PREFIX}/{path}")
    assert answer.status_code in (200, 404), answer.text
    found = Tags(answer.text)
    assert found.injected == []
    for link in found.links:
        assert link.startswith(("/", "https://", "#", "?", "http://testserver")) or not link, link


def test_the_texts_are_on_the_pages() -> None:
    """Else the test above would assert nothing."""
    pages = Pages(status=evil_status(frozenset(each.name for each in sample_status().streams)))
    escaped = "&lt;img src=x onerror=alert(1)&gt;"
    for path in PATHS:
        html = pages.client(role=Role.ADMIN).get(f"{PREFIX}/fragments/{path}").text
        assert escaped in html, path
