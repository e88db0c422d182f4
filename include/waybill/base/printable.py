"""Convert foreign names and texts to one line that a terminal, a log and a table can show.

Topics have a small alphabet. Consumer groups, client ids, reasons, DAG ids and messages of servers can hold any
character: newlines, escape sequences of terminals, marks that reverse the text after them, and halves of surrogate
pairs.
"""

from __future__ import annotations

import re

_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0 and C1, with newline and escape
    "\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction of text
    "\u2028\u2029"  # separators of lines and paragraphs
    "\ufeff\ufff9-\ufffb"
    "\ud800-\udfff]"
)


def printable(text: str) -> str:
    """Return a text in which each control or invisible character is an escape, such as `\\x1b`."""
    return _UNPRINTABLE.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
