"""The parts that all pages share: the navigation, the user, and the age of the shown state."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, urlencode

from waybill.interfaces.operations.declaration import Role
from waybill.interfaces.web.figures import age_text
from waybill.watch.incidents.finding import Verdict
from waybill.watch.promises.status import WatchStatus

POLL_SECONDS = 5
"""The interval in which a page requests its fragment again."""
_STALE_MS = 3 * 60_000
"""A watch runs each minute: after three minutes, the page states that the state is old."""
_PAGES = (
    ("streams", "Streams", "/"),
    ("trace", "Trace", "/trace"),
    ("incidents", "Incidents", "/incidents"),
    ("kafka", "Kafka", "/kafka"),
    ("replays", "Replays", "/replays"),
    ("cost", "Cost", "/cost"),
)


@dataclass(frozen=True, slots=True)
class Viewer:
    """The user of a request."""

    name: str
    role: Role
    sees_all_replays: bool = False
    """Whether the replay requests of others are shown, by the rule of the replay API."""


@dataclass(frozen=True, slots=True)
class Links:
    """Addresses within this app, and in Airflow's UI."""

    root: str
    """The path of this app, without the slash at its end."""
    airflow: str
    """The path of Airflow's UI, without the slash at its end."""

    def page(self, path: str) -> str:
        """Return the address of a page of this app. `path` starts with a slash."""
        return f"{self.root}{path}"

    def stream(self, name: str) -> str:
        """Return the address of the page of a stream."""
        return f"{self.root}/streams/{quote(name, safe='')}"

    def trace(self, stream: str, topic: str, partition: int, offset: int) -> str:
        """Return the address of the page that traces a message."""
        query = {"stream": stream, "topic": topic, "partition": partition, "offset": offset}
        return f"{self.root}/trace?{urlencode(query)}"

    def value(self, stream: str, topic: str, partition: int, offset: int) -> str:
        """Return the address of the bytes of a message's value."""
        query = {"stream": stream, "topic": topic, "partition": partition, "offset": offset}
        return f"{self.root}/trace/value?{urlencode(query)}"

    def dag(self, dag: str) -> str:
        """Return the address of a DAG in Airflow's UI; '' for no DAG."""
        return f"{self.airflow}/dags/{quote(dag, safe='')}" if dag else ""

    def run(self, dag: str, run: str) -> str:
        """Return the address of a DAG run in Airflow's UI."""
        return f"{self.dag(dag)}/runs/{quote(run, safe='')}"


@dataclass(frozen=True, slots=True)
class Away:
    """A service that does not answer."""

    service: str
    detail: str
    since: str
    """When it last answered: `4 min ago`."""


@dataclass(frozen=True, slots=True)
class Freshness:
    """The age of the shown state, and the services that do not answer."""

    at_ms: int | None
    """When the watch measured; None: no status document was read yet."""
    age: str
    is_stale: bool
    away: tuple[Away, ...]
    problem: str
    """Why the status document could not be read again; '' if it could."""


@dataclass(frozen=True, slots=True)
class MessagePage:
    """A page with only a message: why there is nothing to show."""

    title: str
    text: str
    remedy: str
    status: int
    """The HTTP status of the answer."""
    sign_in: str = ""
    """The address of the login page, which leads back here; '' if it would not help."""


@dataclass(frozen=True, slots=True)
class NavItem:
    """An entry of the navigation."""

    name: str
    title: str
    href: str
    is_active: bool


@dataclass(frozen=True, slots=True)
class PageFrame:
    """The values for the layout."""

    title: str
    nav: tuple[NavItem, ...]
    links: Links
    viewer: Viewer
    csrf: str
    """The token that each form sends back in its field `csrf`."""
    freshness: Freshness
    fragment: str
    """The address that answers the body of this page again; '' for a page that does not change."""
    back: str
    """The path of this page, to which an action returns."""
    poll_seconds: int = POLL_SECONDS

    @property
    def may_act(self) -> bool:
        return self.viewer.role >= Role.OPERATOR

    @property
    def may_admin(self) -> bool:
        return self.viewer.role >= Role.ADMIN

    @classmethod
    def of(
        cls,
        name: str,
        title: str,
        links: Links,
        viewer: Viewer,
        csrf: str,
        freshness: Freshness,
        *,
        fragment: str | None = None,
        back: str = "/",
    ) -> PageFrame:
        """Return the frame of the page `name`. `fragment`: the path of its fragment; None: it is not polled."""
        nav = tuple(NavItem(each, text, links.page(path), each == name) for each, text, path in _PAGES)
        address = "" if fragment is None else links.page(fragment)
        return cls(title, nav, links, viewer, csrf, freshness, address, back)


def freshness_of(status: WatchStatus | None, problem: str, now_ms: int) -> Freshness:
    """Return how fresh a status is. `problem`: why it could not be read again."""
    if status is None:
        return Freshness(None, "never", True, (), problem or "no watch has stored a status document yet")
    away = tuple(
        Away(each.name, each.detail or each.figure, age_text(each.answered_ms, now_ms))
        for each in status.services
        if each.verdict is Verdict.BROKEN
    )
    return Freshness(status.at_ms, age_text(status.at_ms, now_ms), now_ms - status.at_ms > _STALE_MS, away, problem)
