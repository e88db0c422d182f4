"""`waybill offsets import STREAM --from-kcl TABLE`: continue where a Kinesis Client Library consumer stopped."""

from __future__ import annotations

from typing import Any

import typer

from waybill.archive.ingest import connect
from waybill.archive.ingest.kinesis.kcl_import import ShardImport, import_leases, propose_lease_imports
from waybill.base.decision import Decision
from waybill.base.errors import ConfigError
from waybill.config.connections import find_connection
from waybill.config.models.quantities import counted
from waybill.interfaces.cli.render import PrintedColumn, print_json, print_table
from waybill.interfaces.cli.targets import current_user, load_streams
from waybill.interfaces.operations.audit_log import logged
from waybill.interfaces.operations.catalogue import IMPORT_OFFSETS


def run(stream: str, table: str, *, yes: bool, as_json: bool) -> None:
    """Print where the shards would start; with `yes`, record it."""
    from waybill.services.kinesis.kcl_leases import read_leases

    config = load_streams()
    chosen = config.stream(stream)
    if not chosen.is_kinesis:
        raise ConfigError(f"stream {stream!r} reads Kafka: --from-kcl is for streams with `source: kinesis`")
    if len(chosen.listed_topics) != 1:
        raise ConfigError(f"stream {stream!r} must name one Kinesis stream in `topics` to import the leases of it")
    (topic,) = chosen.listed_topics
    leases = read_leases(find_connection(chosen.kinesis.connection), table)
    with connect(config, stream) as services:
        proposals = propose_lease_imports(services, topic, leases)
        if yes:
            decision = Decision(f"imported from the KCL lease table {table}", current_user())
            with logged(config, IMPORT_OFFSETS, decision, {"stream": stream}):
                import_leases(services, chosen, topic, proposals, decision)
    if as_json:
        print_json([_document(each, done=yes) for each in proposals])
        return
    columns = [
        PrintedColumn("shard"),
        PrintedColumn("checkpoint"),
        PrintedColumn("its archive begins"),
        PrintedColumn("archived again", figure=True),
    ]
    print_table(
        columns, ([each.shard_id, each.checkpoint or "-", _text(each), str(each.repeated)] for each in proposals)
    )
    repeated = sum(each.repeated for each in proposals)
    if repeated:
        typer.echo(
            f"\n{counted(repeated, 'user record')} of KPL aggregates are archived again: the other consumer stopped "
            f"within these aggregates, and Waybill archives an aggregate whole"
        )
    if not yes:
        typer.echo("\nNothing was written. Stop the other consumer, then add --yes")


def _text(each: ShardImport) -> str:
    position = each.position
    if position is None:
        return "as a new shard"
    if position.is_ended:
        return "never: it was read to its end"
    if position.timestamp_ms >= 0:
        return "with what arrives from now on"
    if not position.sequence:
        return "with its first record"
    return f"{'with' if each.repeated else 'after'} {position.sequence}"


def _document(each: ShardImport, *, done: bool) -> dict[str, Any]:
    return {
        "shard": each.shard_id,
        "checkpoint": each.checkpoint or None,
        "position": None if each.position is None else each.position.to_fields(),
        "repeated": each.repeated,
        "imported": done and each.position is not None,
    }
