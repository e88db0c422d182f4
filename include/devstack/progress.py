"""What a stage that takes long says: a spinner on a terminal, a line now and then in a file."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console

__all__ = ["Say", "stage"]

_QUIET_SECONDS = 5.0


class Say(Protocol):
    """Tells how far a stage is. Cheap to call often."""

    def __call__(self, text: str, /) -> None: ...


@contextmanager
def stage(console: Console, title: str) -> Iterator[Say]:
    """Show `title` and what is said meanwhile; at the end the seconds it took.

    Without a terminal a text is printed at most every five seconds, and only when it is a new one.
    """
    start = time.monotonic()
    with _on_terminal(console, title) if console.is_terminal else _in_file(console, title) as say:
        yield say
    console.print(f"[green]✓[/] {title} [dim]({time.monotonic() - start:.1f} s)[/]", highlight=False)


@contextmanager
def _on_terminal(console: Console, title: str) -> Iterator[Say]:
    start = time.monotonic()
    with console.status(title) as status:

        def say(text: str) -> None:
            status.update(f"{title} [dim]· {text} · {time.monotonic() - start:.0f} s[/]")

        yield say


@contextmanager
def _in_file(console: Console, title: str) -> Iterator[Say]:
    console.print(f"… {title}", highlight=False)
    latest = ("", time.monotonic())

    def say(text: str) -> None:
        nonlocal latest
        now = time.monotonic()
        if text != latest[0] and now - latest[1] >= _QUIET_SECONDS:
            console.print(f"    {text}", highlight=False)
            latest = (text, now)

    yield say
