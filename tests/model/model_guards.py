"""The protocol with one guard turned off: what the model check must find, or it sees nothing.

Each is turned off at the seams between modules, so that none depends on how a module does its part.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from model_lanes import lane

from waybill.archive import chain
from waybill.coordination import Coordinator
from waybill.errors import ObjectAlreadyThere
from waybill.ingest import committed_offset as beginning
from waybill.records.framing import frames
from waybill.store import Store, Upload

__all__ = [
    "adopting_with_its_own_end",
    "committing_before_completing",
    "forgetting_the_chain",
    "forgetting_the_start",
    "taking_a_refusal_for_success",
]


@contextmanager
def committing_before_completing() -> Iterator[None]:
    """Step 7 before step 6: the committed offset is written, then the object is created. Not for uploads in parts."""
    create, write_committed = Store.create_if_absent, Coordinator.write_committed
    waiting: dict[Any, tuple[Any, ...]] = {}

    def later(self: Store, key: str, data: Any, metadata: Any = None) -> None:
        if key.startswith("backup/"):
            waiting[lane()] = (self, key, bytes(data), metadata)
        else:
            create(self, key, data, metadata)

    def write(self: Coordinator, tp: Any, committed: Any, version: int) -> Any:
        written = write_committed(self, tp, committed, version)
        if lane() in waiting:
            with suppress(ObjectAlreadyThere):
                create(*waiting.pop(lane()))
        return written

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "create_if_absent", later)
        patch.setattr(Coordinator, "write_committed", write)
        yield


@contextmanager
def adopting_with_its_own_end() -> Iterator[None]:
    """A refused lane goes on from where its own object ends, and not from the end of the one that is there."""
    create, inspect = Store.create_if_absent, chain.inspect
    refused: dict[Any, int] = {}

    def remembered(self: Store, key: str, data: Any, metadata: Any = None) -> None:
        try:
            create(self, key, data, metadata)
        except ObjectAlreadyThere:
            *_, last = frames(data, where=key)
            refused[lane()] = last.header.next_offset
            raise

    def own_end(*args: Any, **kwargs: Any) -> Any:
        contents, own = inspect(*args, **kwargs), refused.pop(lane(), None)
        return contents if own is None else replace(contents, next_offset=own)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "create_if_absent", remembered)
        patch.setattr(chain, "inspect", own_end)
        yield


@contextmanager
def taking_a_refusal_for_success() -> Iterator[None]:
    """A lane that is refused believes that its own earlier try went through."""
    complete = Upload.complete

    def blind(self: Upload) -> None:
        with suppress(ObjectAlreadyThere):
            complete(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Upload, "complete", blind)
        yield


@contextmanager
def forgetting_the_start() -> Iterator[None]:
    """Where a chain begins is not kept: without a node and an object, it is decided again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beginning, "record_start", lambda _store, _generation, _tp, start: start)
        yield


@contextmanager
def forgetting_the_chain() -> Iterator[None]:
    """Without a node the lane begins where the chain began, whatever is archived."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chain, "last", lambda *_: None)
        yield
