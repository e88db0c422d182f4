"""Texts of messages from names that anybody can choose: topics, groups, streams, DAG runs, users, reasons.

Names from Kafka, Kinesis, Airflow and the command line can hold any character. A newline in a mail's subject would
start another header, Slack executes `<!channel>`, a character that changes the direction of text can disguise a name,
and a lone surrogate (a byte that is not UTF-8) cannot be sent at all. So invisible characters are shown as escapes, and
long texts are cut, with their length added.
"""

from __future__ import annotations

import hashlib
import unicodedata
from urllib.parse import quote

LONGEST_TEXT = 4_000
"""Characters of one fact of a message. A whole message then fits into 512 KB, which is PagerDuty's limit."""
_LONGEST_ID = 150
_LONGEST_SLACK_TEXT = 1_900
_SLACK_MARKUP = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
"""Unicode's categories of control and format characters, surrogates, private and unassigned ones, and separators."""
_JOINERS = "\u200c\u200d"
"""Format characters that are part of words and emoji."""


def readable(text: str, most: int = LONGEST_TEXT) -> str:
    """Return a text without invisible characters: they are written as `\\u202e`. Newlines and tabs stay."""
    return _shortened("".join(char if char in "\n\t" else _shown(char) for char in text[: most + 1]), len(text), most)


def one_line(text: str, most: int) -> str:
    """Return a text for one line, as `readable`: a newline is written as `\\n`."""
    return _shortened("".join(_shown(char) for char in text[: most + 1]), len(text), most)


def encodable(value: object) -> object:
    """Return a JSON value with texts that can be encoded as UTF-8: each lone surrogate becomes U+FFFD."""
    match value:
        case str():
            # UTF-16 combines two surrogates that form one character; the decoder replaces lone ones.
            return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case dict():
            return {encodable(key): encodable(each) for key, each in value.items()}
        case list() | tuple():
            return [encodable(each) for each in value]
        case _:
            return value


def ascii_id(text: str) -> str:
    """Return an id for headers: ASCII without spaces and brackets, of at most 150 characters.

    Ids of incidents are ASCII, except old ids of open incidents from earlier versions of Waybill.
    """
    found = quote(text, safe="-_.", errors="surrogatepass")
    if len(found) <= _LONGEST_ID:
        return found
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{found[: _LONGEST_ID - 17]}-{digest}"


def slack_text(text: str, most: int = _LONGEST_SLACK_TEXT) -> str:
    """Escape the characters that Slack reads as markup, and limit the length of the text."""
    found: list[str] = []
    length = 0
    for char in readable(text):
        escaped = _SLACK_MARKUP.get(char, char)
        length += len(escaped)
        if length > most:
            return "".join([*found, "…"])
        found.append(escaped)
    return "".join(found)


def slack_code(text: str) -> str:
    """Return text for a code block, in which three backticks are escaped, since they would end the block."""
    return slack_text(text.replace("```", "` ` `"))


def slack_link(url: str, text: str) -> str:
    """Return a link. `|` and `>` in the address would end it."""
    shown = quote(url, safe=":/?#[]@!$&()*+,;=%~", errors="replace")
    return f"<{shown.replace('&', '&amp;')}|{slack_text(text)}>"


def _shown(char: str) -> str:
    if char.isprintable() or char in _JOINERS:
        return char
    if unicodedata.category(char) not in _INVISIBLE:
        return char
    return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(char, _escape(char))


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _shortened(shown: str, length: int, most: int) -> str:
    return shown if len(shown) <= most else f"{shown[:most]}… ({length:,} characters)"
