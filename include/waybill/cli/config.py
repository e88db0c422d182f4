"""`waybill config …`."""

from __future__ import annotations

import typer

from waybill.config import config_path, load_config, reference

__all__ = ["check", "print_reference", "print_schema"]


def check() -> None:
    """Load the config; what is wrong with it comes as `ConfigError`, a line for each fault."""
    path = config_path()
    config = load_config(path)
    count = len(config.streams)
    typer.echo(f"{path} is right: {count} {'stream' if count == 1 else 'streams'} ({', '.join(config.streams)})")


def print_reference() -> None:
    typer.echo(reference.markdown(), nl=False)


def print_schema() -> None:
    typer.echo(reference.json_schema())
