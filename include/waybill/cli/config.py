"""The commands `waybill config …`."""

from __future__ import annotations

import typer

from waybill.config import config_path, load_config, reference

__all__ = ["check", "print_reference", "print_schema"]


def check() -> None:
    """Load the config and print that it is valid. Raise `ConfigError`, with a line for each error, if it is not."""
    path = config_path()
    config = load_config(path)
    count = len(config.streams)
    typer.echo(f"{path} is valid: {count} {'stream' if count == 1 else 'streams'} ({', '.join(config.streams)})")


def print_reference() -> None:
    """Print the reference of the config as Markdown."""
    typer.echo(reference.markdown(), nl=False)


def print_schema() -> None:
    """Print the JSON schema of the config."""
    typer.echo(reference.json_schema())
