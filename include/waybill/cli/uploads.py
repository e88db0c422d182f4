"""`waybill uploads`: multipart uploads that nobody completed."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

from waybill.cli.render import Column, print_json, print_table, time_text
from waybill.cli.services import open_store
from waybill.config import Config, load_config
from waybill.config.values import parse_duration
from waybill.errors import ConfigError
from waybill.ingest.orphans import Belongs, abort_orphans, of_stream
from waybill.store import PendingUpload

__all__ = ["abort", "ls"]


def ls(stream: str | None, *, as_json: bool) -> None:
    """Print them; see `waybill uploads ls --help`."""
    config = load_config()
    belongs = _belonging(config, stream)
    with open_store(config) as store:
        found = [upload for upload in store.pending_uploads() if belongs(upload.chain)]
    if as_json:
        print_json([{"key": u.key, "upload_id": u.upload_id, "begun": time_text(u.begun)} | _chain(u) for u in found])
        return
    print_table(
        [Column("key"), Column("begun", figure=True), Column("upload id")],
        ([upload.key, time_text(upload.begun), upload.upload_id] for upload in found),
    )
    print(f"{len(found):,} uploads", file=sys.stderr)


def abort(stream: str | None, older_than: str | None) -> None:
    """Abort them; see `waybill uploads abort --help`."""
    config = load_config()
    belongs = _belonging(config, stream)
    try:
        age = config.storage.abort_uploads_after if older_than is None else parse_duration(older_than)
    except ValueError as error:
        raise ConfigError(f"--older-than {older_than}: {error}") from None
    with open_store(config) as store:
        aborted = abort_orphans(store, store.pending_uploads(), datetime.now(UTC) - age, belongs)
    for upload in aborted:
        print(f"aborted {upload.key}, begun {time_text(upload.begun)}")
    print(f"{len(aborted):,} uploads", file=sys.stderr)


def _belonging(config: Config, stream: str | None) -> Belongs:
    return (lambda _: True) if stream is None else of_stream(config, stream)


def _chain(upload: PendingUpload) -> dict[str, object]:
    chain = upload.chain
    return {"topic": chain.tp.topic, "partition": chain.tp.partition, "generation": chain.generation}
