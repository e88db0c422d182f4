"""`waybill generation`: the generations in a stream's table, and which one consumers read."""

from __future__ import annotations

import typer

from waybill.interfaces.cli.render import PrintedColumn, count, print_json, print_table, time_text
from waybill.interfaces.cli.targets import load_streams, make_decision, open_catalog
from waybill.interfaces.operations.audit_log import logged
from waybill.interfaces.operations.catalogue import PROMOTE_GENERATION


def list_generations(stream: str, *, as_json: bool) -> None:
    """Print the generations in the table of a stream; see `waybill generation ls --help`."""
    config = load_streams()
    table = config.stream(stream).table
    from waybill.tables.partition.generations import list_generations as found_in

    with open_catalog(config) as catalog:
        found = found_in(catalog, config, stream)
    if as_json:
        print_json(
            [
                {
                    "generation": each.number,
                    "live": each.is_live,
                    "rows": each.rows,
                    "progress": {str(tp): offset for tp, offset in sorted(each.progress.items())},
                    "updated_at": each.updated_at.isoformat() if each.updated_at else None,
                }
                for each in found
            ]
        )
        return
    columns = [
        PrintedColumn("generation", figure=True),
        PrintedColumn("live"),
        PrintedColumn("rows", figure=True),
        PrintedColumn("updated"),
    ]
    lines = (
        (
            str(each.number),
            "yes" if each.is_live else "",
            count(each.rows),
            time_text(each.updated_at) if each.updated_at else "",
        )
        for each in found
    )
    print_table(columns, lines)
    typer.echo(f"Consumers of {table} read the live generation.", err=True)


def run_promote(stream: str, generation: int | None, *, reason: str, by: str | None, as_json: bool) -> None:
    """Let consumers of a stream read another generation; see `waybill generation promote --help`."""
    decision = make_decision(reason, by)
    config = load_streams()
    chosen = generation or config.stream(stream).generation
    from waybill.tables.partition.generations import promote_generation

    with logged(config, PROMOTE_GENERATION, decision, {"stream": stream, "generation": chosen}) as done:
        changed = promote_generation(config, stream, chosen, by=decision.by, reason=decision.reason)
        done.text = f"generation {chosen} is live" if changed else f"generation {chosen} was live already"
    if as_json:
        print_json({"stream": stream, "generation": chosen, "changed": changed})
    elif changed:
        typer.echo(f"promoted generation {chosen} of {stream}: consumers of {config.stream(stream).table} read it now")
    else:
        typer.echo(f"generation {chosen} of {stream} is live already")
