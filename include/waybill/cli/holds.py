"""`waybill quality release` and `waybill quality reject`: decide about the held run of a stream."""

from __future__ import annotations

import typer

from waybill.cli.render import count, print_json
from waybill.cli.targets import load_streams, make_decision

__all__ = ["run_reject", "run_release"]


def run_release(stream: str, *, reason: str, by: str | None, as_json: bool) -> None:
    """Publish the held rows of a stream as they are; see `waybill quality release --help`."""
    decision = make_decision(reason, by)
    config = load_streams()
    from waybill.partition.holds import release_hold

    hold = release_hold(config, stream, by=decision.by, reason=decision.reason)
    if as_json:
        print_json(hold.document())
        return
    typer.echo(
        f"released {stream}: {count(hold.staged.rows)} rows and {count(hold.staged.quarantined)} quarantined messages "
        f"are published. The next run continues after them."
    )


def run_reject(stream: str, *, reason: str, by: str | None, as_json: bool) -> None:
    """Drop the held rows of a stream; see `waybill quality reject --help`."""
    decision = make_decision(reason, by)
    config = load_streams()
    from waybill.partition.holds import reject_hold

    hold = reject_hold(config, stream, by=decision.by, reason=decision.reason)
    if as_json:
        print_json(hold.document())
        return
    typer.echo(
        f"rejected {stream}: {count(hold.staged.rows)} rows and {count(hold.staged.quarantined)} quarantined messages "
        f"are dropped. The next run parses the same messages again, with the config of that time."
    )
