"""The root of the command line, and the commands about the config."""

from __future__ import annotations

from typing import Annotated

import typer

from waybill import __version__
from waybill.interfaces.cli.commands import archive, backfill, kafka, replay, restore, tables, watch

app = typer.Typer(
    name="waybill",
    help="Archive Kafka to S3 without losing or repeating a message, and verify it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
config_app = typer.Typer(help="Check and describe the config.", no_args_is_help=True)
app.add_typer(config_app, name="config")
for commands in (archive, tables, backfill, restore, replay, watch, kafka):
    app.add_typer(commands.app)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"waybill {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    del version


@config_app.command("check")
def config_check(
    store: Annotated[
        bool, typer.Option("--store", help="Also probe the S3 store: can it do what Waybill relies on?")
    ] = False,
) -> None:
    """Check the config. Print a line for each error and exit with code 1 if it is not valid."""
    from waybill.interfaces.cli import config

    config.check(with_store=store)


@config_app.command("reference")
def config_reference() -> None:
    """Print the reference of every key, as Markdown."""
    from waybill.interfaces.cli import config

    config.print_reference()


@config_app.command("schema")
def config_schema() -> None:
    """Print a JSON schema of the config, for editors that complete and check YAML."""
    from waybill.interfaces.cli import config

    config.print_schema()
