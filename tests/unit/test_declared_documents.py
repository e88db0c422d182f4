"""Each stored document is declared as a `Document`: no other module writes the version of a layout by hand."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2] / "include/waybill"

BY_HAND = {
    # Printed for programs (`--json`), and not read by Waybill.
    "interfaces/cli/incidents.py",
    "tables/backfill/report.py",
    "tables/dedup/sweep_report.py",
    "tables/maintenance/procedures.py",
    "tables/partition/files_sink/finalize.py",
    "tables/partition/partition_report.py",
    "tables/quarantine/quarantine_report.py",
    "watch/ledger/balance.py",
    "watch/ledger/periods.py",
    # Sent to webhooks, or made for who requested a replay.
    "replay/requests/delivery/batches.py",
    "replay/requests/delivery/s3_objects.py",
    "replay/requests/delivery/webhook.py",
    "watch/notify/message.py",
    # A value in a JSON column of the database: another version counts as none.
    "replay/requests/delivery/breaker.py",
}
"""Modules with documents that are not declared, by the reason (docs/decisions/0039)."""


def _writes_a_version(path: Path) -> bool:
    """Return whether a module makes a mapping with the field `v`."""
    text = path.read_text()
    return '"v"' in text and any(
        isinstance(node, ast.Dict) and any(isinstance(key, ast.Constant) and key.value == "v" for key in node.keys)
        for node in ast.walk(ast.parse(text))
    )


def test_each_stored_document_is_declared() -> None:
    modules = {str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py") if _writes_a_version(path)}
    assert modules - {"base/documents.py"} == BY_HAND
