"""Make the pictures of a mail and of a Slack message: `mail.png` and `slack.png` beside this file.

    python docs/monitoring/pictures.py [--browser chromium]

Both show the message of one incident as the watch renders it (`waybill.watch.notify.message`). The mail is its HTML
part with the headers above. Slack itself cannot be shown here: the picture is a rendition of the same blocks, and
states so. It needs a Chromium (`apt-get install chromium`).
"""

from __future__ import annotations

import argparse
import html
import re
import shutil
import subprocess
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from waybill.config.models.alerts import Alerts
from waybill.config.models.promises import PromiseName, PromiseSeverity
from waybill.watch.incidents.incident import Incident, NotificationKind
from waybill.watch.notify.message import ChannelMessage

HERE = Path(__file__).parent
ALERTS = Alerts.model_validate(
    {
        "airflow_url": "https://airflow.example.com",
        "runbooks_url": "https://git.example.com/waybill/docs/runbooks",
    }
)
SINCE = datetime(2026, 11, 22, 10, 15, tzinfo=UTC)
FOUND = datetime(2026, 11, 22, 10, 16, tzinfo=UTC)


def example() -> ChannelMessage:
    """Return the message when an incident has opened."""
    incident = Incident(
        id=f"flights-archive_lag-{FOUND:%Y%m%dT%H%M%SZ}",
        stream="flights",
        promise=PromiseName.ARCHIVE_LAG,
        subject="",
        severity=PromiseSeverity.CRITICAL,
        opened_ms=int(FOUND.timestamp() * 1000),
        since_ms=int(SINCE.timestamp() * 1000),
        figure="16 min",
        limit="at most 15 min",
        detail="3 topic-partitions, at most 12,040 messages; the oldest in flights/0",
        command="waybill offsets --stream flights",
    )
    return ChannelMessage.of("", NotificationKind.OPENED, incident, ALERTS, int(FOUND.timestamp() * 1000))


def mail_page(message: ChannelMessage) -> str:
    """Return the mail as a page: the headers that a mail program shows, and the HTML part."""
    headers = {"From": "waybill@example.com", "To": "data-team@example.com", "Subject": message.subject}
    lines = "".join(f"<div><b>{name}:</b> {html.escape(value)}</div>" for name, value in headers.items())
    style = "font: 14px sans-serif; padding: 10px 24px; border-bottom: 1px solid #ddd; line-height: 1.6"
    return message.html().replace(">\n<div", f">\n<div style='{style}'>{lines}</div>\n<div", 1)


def slack_page(message: ChannelMessage) -> str:
    """Return a rendition of the message's blocks, close to how Slack shows them."""
    blocks = "".join(_block(block) for block in message.slack_blocks())
    return f"""<!doctype html><meta charset="utf-8"><style>
body {{ font: 15px/1.46 Lato, "DejaVu Sans", sans-serif; color: #1d1c1d; margin: 20px 24px }}
.app {{ font-weight: bold }} .badge {{ background: #e8e8e8; color: #616061; font-size: 10px; padding: 1px 4px }}
.time, .note {{ color: #616061; font-size: 12px }} .note {{ margin-top: 16px; font-style: italic }}
h2 {{ font-size: 18px; margin: 4px 0 10px }} .fields {{ display: grid; grid-template-columns: 1fr 1fr; gap: 8px 24px }}
pre {{ background: #f8f8f8; border: 1px solid #ddd; padding: 8px; font-size: 12px; white-space: pre-wrap }}
.context {{ color: #616061; font-size: 13px }} a {{ color: #1264a3; text-decoration: none }}
code {{ background: #f8f8f8; border: 1px solid #ddd; color: #c01343; padding: 1px 3px; font-size: 12px }}
</style><div><span class="app">Waybill</span> <span class="badge">APP</span>
<span class="time">{FOUND:%H:%M}</span></div>{blocks}
<div class="note">A rendition of the message's blocks, made by docs/monitoring/pictures.py; not Slack itself.</div>"""


def _block(block: dict[str, Any]) -> str:
    match block["type"]:
        case "header":
            return f"<h2>{html.escape(block['text']['text'])}</h2>"
        case "section" if "fields" in block:
            return f"<div class='fields'>{''.join(f'<div>{_markdown(each)}</div>' for each in block['fields'])}</div>"
        case "section":
            return _markdown(block["text"])
        case "context":
            return f"<div class='context'>{''.join(_markdown(each) for each in block['elements'])}</div>"
    raise ValueError(f"no rendition of a block {block['type']!r}")


def _markdown(element: dict[str, Any]) -> str:
    """Return the HTML of Slack's markup, as far as messages use it: bold, code, links, line breaks."""
    text = element["text"]
    text = re.sub(r"```(.*?)```", r"<pre>\1</pre>", text, flags=re.DOTALL)
    text = re.sub(r"<(https?://[^|>]*)\|([^>]*)>", r'<a href="\1">\2</a>', text)
    text = re.sub(r"`([^`]*)`", r"<code>\1</code>", text)
    text = re.sub(r"(?m)^\*([^*\n]+)\*$", r"<b>\1</b>", text)
    return "".join(part if part.startswith("<pre>") else part.replace("\n", "<br>") for part in _parts(text))


def _parts(text: str) -> list[str]:
    return re.split(r"(<pre>.*?</pre>)", text, flags=re.DOTALL)


def take_picture(browser: str, page: str, file: Path, width: int, height: int) -> None:
    """Write a screenshot of a page."""
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "page.html"
        source.write_text(page)
        subprocess.run(
            [
                browser,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                f"--user-data-dir={directory}/profile",
                f"--window-size={width},{height}",
                f"--screenshot={file}",
                source.as_uri(),
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )


def main() -> None:
    """Parse the command line, and write both pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--browser", default=shutil.which("chromium") or "chromium")
    browser = parser.parse_args().browser
    message = example()
    take_picture(browser, mail_page(message), HERE / "mail.png", 900, 460)
    take_picture(browser, slack_page(message), HERE / "slack.png", 760, 500)


if __name__ == "__main__":
    main()
