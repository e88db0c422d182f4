"""The commands of `python -m devstack.supply_chain`; the targets of the Makefile call them."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Annotated

import typer

from devstack.state import project_root
from devstack.supply_chain import audit as audits
from devstack.supply_chain import images
from waybill.base.errors import StackError

app = typer.Typer(
    help="The supply chain: advisories, and digests of images.", add_completion=False, pretty_exceptions_enable=False
)


@app.command()
def audit(
    update: Annotated[bool, typer.Option("--update", help="Store OSV's advisories in the repository.")] = False,
    stored: Annotated[bool, typer.Option("--stored", help="Ask no server: compare with the stored file.")] = False,
) -> None:
    """Compare the locked packages and jars with known advisories. Exit code 1 if one is not accepted."""
    if update and stored:
        raise StackError("--update stores what OSV answers, and --stored asks nothing: give one of them")
    report = audits.audit(project_root(), datetime.now(UTC).date(), update=update, is_offline=stored)
    raise typer.Exit(0 if report.passes else 1)


@app.command("lock-images")
def lock_images() -> None:
    """Write the digest of each image behind its tag, in the Dockerfile and in docker-compose.yaml."""
    for image in images.lock_images(project_root(), images.digest_of):
        print(image)


def main() -> None:
    """Run the command line, and exit. A `StackError` is printed without a traceback."""
    try:
        app()
    except StackError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
