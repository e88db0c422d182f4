"""Templates and static files: Jinja with autoescape, and each static file under a name with its hash."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from waybill.interfaces.web.frame import PageFrame

TEMPLATES = Path(__file__).with_name("templates")
STATIC = Path(__file__).with_name("static")

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A static file."""

    content: bytes
    digest: str
    media_type: str


class Renderer:
    """Renders templates. Everything that a template prints is escaped."""

    def __init__(self, templates: Path = TEMPLATES, static: Path = STATIC) -> None:
        self._environment = Environment(
            loader=FileSystemLoader(templates),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self.assets = {
            each.name: Asset(content, hashlib.sha256(content).hexdigest()[:16], _TYPES[each.suffix])
            for each in sorted(static.iterdir() if static.is_dir() else [])
            if each.suffix in _TYPES
            for content in [each.read_bytes()]
        }

    def render(self, template: str, frame: PageFrame, page: Any) -> str:
        """Return the HTML of a page."""

        def static_url(name: str) -> str:
            return f"{frame.links.root}/static/{name}?v={self.assets[name].digest}"

        return self._environment.get_template(template).render(frame=frame, page=page, static_url=static_url)
