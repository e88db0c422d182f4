"""The protocol with one guard turned off. The model check must find a counterexample, which shows that it can find one.

Each guard is turned off between two modules, so that no patch depends on the inside of a module.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from model_lanes import lane

from waybill.archive.chain import chain, object_reader
from waybill.archive.ingest import committed_offset
from waybill.base.errors import ObjectExists
from waybill.records.batches.framing import frames
from waybill.services.coordination import Coordinator
from waybill.services.store import Store, Upload


@contextmanager
def commit_before_completing() -> Iterator[None]:
    """Do step 7 before step 6: write the committed offset, then create the object. Not for multipart uploads."""
    create, write_committed = Store.create_if_absent, Coordinator.write_committed
    delayed: dict[Any, tuple[Any, ...]] = {}

    def later(self: Store, key: str, data: Any, metadata: Any = None) -> None:
        if key.startswith("backup/"):
            delayed[lane()] = (self, key, bytes(data), metadata)
        else:
            create(self, key, data, metadata)

    def write(self: Coordinator, tp: Any, committed: Any, version: int) -> Any:
        written = write_committed(self, tp, committed, version)
        if lane() in delayed:
            with suppress(ObjectExists):
                create(*delayed.pop(lane()))
        return written

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "create_if_absent", later)
        patch.setattr(Coordinator, "write_committed", write)
        yield


@contextmanager
def adopt_with_own_end() -> Iterator[None]:
    """Let a refused lane continue from the end of its own object instead of the end of the existing one."""
    create, inspect = Store.create_if_absent, object_reader.inspect_object
    refused: dict[Any, int] = {}

    def remembered(self: Store, key: str, data: Any, metadata: Any = None) -> None:
        try:
            create(self, key, data, metadata)
        except ObjectExists:
            *_, last = frames(data, where=key)
            refused[lane()] = last.header.next_offset
            raise

    def own_end(*args: Any, **kwargs: Any) -> Any:
        contents, own = inspect(*args, **kwargs), refused.pop(lane(), None)
        return contents if own is None else replace(contents, next_offset=own)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "create_if_absent", remembered)
        patch.setattr(object_reader, "inspect_object", own_end)
        yield


@contextmanager
def take_refusal_for_success() -> Iterator[None]:
    """Let a refused lane assume that its own earlier attempt has created the object."""
    complete = Upload.complete

    def blind(self: Upload) -> None:
        with suppress(ObjectExists):
            complete(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Upload, "complete", blind)
        yield


@contextmanager
def forget_chain_start() -> Iterator[None]:
    """Do not store where a chain starts: without a committed offset and an object, it is decided again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(committed_offset, "record_chain_start", lambda _store, _generation, _tp, start: start)
        yield


@contextmanager
def forget_chain() -> Iterator[None]:
    """Without a committed offset, let the lane begin at the chain's start, whatever is archived."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chain, "find_last_object", lambda *_: None)
        yield
