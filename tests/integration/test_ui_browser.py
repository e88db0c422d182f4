"""The pages in a real browser, through Airflow's login: what people see and do, and what they cannot do."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from airflow_pages import BASE, Server
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pages_browser import CHROMIUM, DRIVER, NARROW, WIDE, Browser, open_browser
from sample_status import NOW_MS, sample_status

from devstack import Stack
from waybill.config import Config, load_config
from waybill.ingest import Outcome, plan_lanes, run_lane
from waybill.names import status_key
from waybill.store import Store
from waybill.watch.run import run_watch
from waybill.watch.status import Status

pytestmark = [
    pytest.mark.integration,
    pytest.mark.deep,
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER), reason="needs Debian's Chromium: apt-get install chromium chromium-driver"
    ),
]

PAGES = {
    "streams": "/",
    "stream": "/streams/flights",
    "trace": "/trace",
    "incidents": "/incidents",
    "kafka": "/kafka",
    "replays": "/replays",
    "cost": "/cost",
}
EVIL = '"><img src=x onerror="window.__hit=1"><script>window.__hit=1</script>'
TOPIC = "ui-flights"


def shifted(value: Any, by_ms: int) -> Any:
    """Return a status document with all its times moved."""
    if isinstance(value, tuple):
        return tuple(shifted(each, by_ms) for each in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changed = {}
    for field in fields(value):
        old = getattr(value, field.name)
        is_time = field.name.endswith("_ms") and isinstance(old, int)
        changed[field.name] = old + by_ms if is_time else shifted(old, by_ms)
    return replace(value, **changed)


def fresh(status: Status | None = None) -> Status:
    """Return the sample as if the watch had measured now."""
    return shifted(status or sample_status(), time.time_ns() // 1_000_000 - NOW_MS)  # type: ignore[no-any-return]


class Scene:
    """The server, the browser, and what the watch stored."""

    def __init__(self, server: Server, browser: Browser, directory: Path) -> None:
        self.server, self.browser, self.directory = server, browser, directory
        self.config: Config = load_config(Path(server.environment["WAYBILL_CONFIG"]))

    def store(self, status: Status | None = None) -> None:
        """Store a status document, and wait until the server has read it."""
        with Store.of(self.config.storage) as store:
            store.replace(status_key(store.prefix), fresh(status).content())
        time.sleep(4)

    def runs(self, user: str, dag: str) -> list[dict[str, Any]]:
        with self.server.browser(user) as client:
            answer = client.get(f"/api/v2/dags/{dag}/dagRuns")
            return list(answer.json()["dag_runs"])


@pytest.fixture
def scene(airflow_pages: Server, tmp_path: Path) -> Iterator[Scene]:
    with open_browser(airflow_pages.root) as browser:
        yield Scene(airflow_pages, browser, tmp_path)


# --- finding things ---


def test_navigation_of_airflow_shows_the_pages_and_the_list_can_be_filtered(scene: Scene) -> None:
    scene.store()
    browser = scene.browser
    browser.sign_in("ada")
    browser.driver.get(f"{scene.server.root}/plugin/waybill")
    frame = browser.wait(lambda: next(iter(browser.all('iframe[src*="waybill/ui"]')), None))
    browser.driver.switch_to.frame(frame)
    browser.wait(lambda: browser.all("#streams tbody tr"))
    browser.driver.switch_to.default_content()

    browser.open("/")
    rows = lambda: [row.text.split()[0] for row in browser.all("#streams tbody tr") if row.is_displayed()]  # noqa: E731
    assert set(rows()) >= {"flights", "paused"}
    browser.all("#filter-text")[0].send_keys("flig")
    assert rows() == ["flights"]
    browser.driver.refresh()
    browser.wait(lambda: rows() == ["flights"])
    assert browser.driver.current_url.endswith("?filter=flig")
    browser.all("#filter-text")[0].clear()
    browser.all('#filter-health option:not([value=""])')[2].click()
    browser.wait(lambda: rows() == ["paused"])


def test_page_follows_the_watch_without_a_reload_and_leaves_open_forms_alone(scene: Scene) -> None:
    scene.store()
    browser = scene.browser
    browser.sign_in("ada")
    browser.open("/streams/flights")
    assert "another.table" not in browser.text
    changed = sample_status()
    streams = tuple(
        replace(each, table="another.table") if each.name == "flights" else each for each in changed.streams
    )
    scene.store(replace(changed, streams=streams))
    browser.wait(lambda: "another.table" in browser.text)
    browser.all("details.action summary")[0].click()
    scene.store()
    time.sleep(6)
    assert "another.table" in browser.text, "a form is open"
    assert "Not refreshed while a form is open" in browser.text
    browser.all("details.action summary")[0].click()
    browser.driver.execute_script("document.activeElement.blur()")
    browser.wait(lambda: "another.table" not in browser.text)


# --- acting ---


@pytest.mark.parametrize(
    ("action", "dag", "conf"),
    [
        ("release", "quality_decision", {"stream": "flights", "decision": "release"}),
        ("reject", "quality_decision", {"stream": "flights", "decision": "reject"}),
        ("retry", "quarantine_retry", {"stream": "flights", "reasons": ["not_json"]}),
        ("promote", "backfill", {"stream": "flights", "action": "promote"}),
        ("cancel", "backfill", {"stream": "flights", "action": "cancel"}),
    ],
)
def test_click_orders_a_dag_run_as_the_user_with_the_reason(
    scene: Scene, action: str, dag: str, conf: dict[str, Any]
) -> None:
    scene.store()
    before = len(scene.runs("ulf", dag))
    browser = scene.browser
    browser.sign_in("ulf")
    browser.open("/streams/flights")
    browser.act(action, f"because of {action}")
    assert browser.all("h1")[0].text == "Done", browser.text
    assert "waybill " in browser.text, "the command that does the same"
    link = browser.all(f'a[href*="{BASE}/dags/{dag}/runs/"]')
    assert link, browser.text
    runs = scene.runs("ulf", dag)
    assert len(runs) == before + 1
    newest = max(runs, key=lambda run: run["queued_at"] or run["run_after"])
    assert newest["triggering_user_name"] == "ulf"
    assert {name: newest["conf"][name] for name in conf} == conf
    assert action == "retry" or newest["conf"]["reason"] == f"because of {action}"


def test_pause_is_a_record_and_resume_ends_it(scene: Scene) -> None:
    scene.store()
    browser = scene.browser
    browser.sign_in("ulf")
    browser.open("/streams/flights")
    browser.act("pause", "Kafka is upgraded")
    assert browser.all("h1")[0].text == "Done", browser.text
    run_watch(scene.config, directory=scene.directory)
    browser.open("/streams/flights")
    browser.wait(lambda: "paused by ulf" in browser.text)
    assert "Kafka is upgraded" in browser.text
    browser.act("resume", "the upgrade is done")
    run_watch(scene.config, directory=scene.directory)
    browser.open("/incidents")
    browser.wait(lambda: "the upgrade is done" in browser.text)  # actions of people are listed


def make_gap(scene: Scene, stack: Stack) -> None:
    """Archive messages, let Kafka delete those that follow, and let ingest stop at the gap."""
    admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers})
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(timeout=30)
    produce(stack, 10)
    (lane,) = plan_lanes(scene.config, "flights")
    assert run_lane(scene.config, lane).partitions[0].outcome is Outcome.UP_TO_DATE
    produce(stack, 10)
    from confluent_kafka import TopicPartition

    for deleted in admin.delete_records([TopicPartition(TOPIC, 0, 15)]).values():
        deleted.result(timeout=30)
    assert run_lane(scene.config, lane).partitions[0].outcome is Outcome.STOPPED


def produce(stack: Stack, count: int) -> None:
    producer = Producer({"bootstrap.servers": stack.bootstrap_servers})
    for number in range(count):
        value = b'{"at": 1767225600000, "n": %d}' % number
        producer.produce(TOPIC, value, EVIL.encode(), 0, headers=[(EVIL, EVIL.encode())])
    assert producer.flush(30) == 0


def test_gap_is_accepted_by_an_admin_alone_and_hostile_messages_are_text(scene: Scene, stack: Stack) -> None:
    make_gap(scene, stack)
    run_watch(scene.config, directory=scene.directory)
    browser = scene.browser
    browser.sign_in("ulf")
    browser.open("/streams/flights")
    browser.wait(lambda: "RetentionGap" in browser.text)
    assert browser.all('form[action$="/actions/accept-gap"]') == [], "an operator may not accept a loss"
    browser.sign_in("ada")
    browser.open("/streams/flights")
    browser.act("accept-gap", f"lost in the upgrade {EVIL}")
    assert browser.all("h1")[0].text == "Done", browser.text
    assert "ingest resumes at offset 15" in browser.text
    (lane,) = plan_lanes(scene.config, "flights")
    assert run_lane(scene.config, lane).partitions[0].outcome is Outcome.UP_TO_DATE
    run_watch(scene.config, directory=scene.directory)
    for path in ("/incidents", f"/trace?stream=flights&topic={TOPIC}&partition=0&offset=3"):
        browser.open(path)
        browser.wait(lambda: EVIL in browser.text)
        assert browser.driver.execute_script("return window.__hit") is None
        assert len(browser.all("script")) == 2
        assert browser.all('img[src="x"]') == []
    admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers})
    admin.delete_topics([TOPIC])[TOPIC].result(timeout=30)


def test_viewer_sees_everything_and_can_do_nothing(scene: Scene) -> None:
    scene.store()
    browser = scene.browser
    browser.sign_in("vic")
    browser.open("/streams/flights")
    assert browser.all("main form") == []
    assert browser.all("details.action button:disabled")
    answer = browser.driver.execute_async_script(
        """const done = arguments[1];
        const body = new URLSearchParams({stream: "flights", reason: "x", csrf: "guess"});
        fetch(arguments[0], {method: "POST", body}).then((answer) => done(answer.status));""",
        f"{scene.server.root}/waybill/ui/actions/pause",
    )
    assert answer == 403


def test_form_of_another_site_is_refused(scene: Scene, tmp_path: Path) -> None:
    scene.store()
    browser = scene.browser
    browser.sign_in("ada")
    browser.open("/")
    token = browser.all('input[name="csrf"]')[0].get_attribute("value")
    evil = tmp_path / "evil.html"
    evil.write_text(
        f'<form method="post" action="{scene.server.root}/waybill/ui/actions/pause">'
        f'<input name="stream" value="flights"><input name="reason" value="x"><input name="csrf" value="{token}">'
        f"<button>win</button></form>"
    )
    browser.driver.get(evil.as_uri())
    browser.all("button")[0].click()
    browser.wait(lambda: "/actions/pause" in browser.driver.current_url)
    assert "Done" not in browser.text


# --- services away ---


def test_services_that_are_away_are_named_and_the_last_state_stays(scene: Scene, stack: Stack) -> None:
    scene.store()
    browser = scene.browser
    browser.sign_in("ada")
    browser.open("/")
    assert "the catalog does not answer" in browser.text, "the watch found that"
    stack.kill_s3()
    try:
        browser.wait(lambda: "StoreUnavailable" in browser.text, 90)
        assert browser.all("#streams tbody tr"), "the last known state"
    finally:
        stack.start_s3()
    browser.wait(lambda: "StoreUnavailable" not in browser.text, 90)
    assert scene.server.process is not None
    os.killpg(scene.server.process.pid, signal.SIGSTOP)
    try:
        browser.wait(lambda: "Airflow does not answer" in browser.text, 60)
        assert browser.all("#streams tbody tr")
    finally:
        os.killpg(scene.server.process.pid, signal.SIGCONT)
    browser.wait(lambda: "Airflow does not answer" not in browser.text, 60)
    scene.store(shifted(sample_status(), -3_600_000))
    browser.wait(lambda: "No watch has stored a newer state" in browser.text)


# --- how it looks ---


def test_pages_have_no_accessibility_faults_and_nothing_is_cut_in_any_theme_or_width(scene: Scene) -> None:
    """WAYBILL_SCREENSHOTS=docs/images/ui stores the pictures of the user guide."""
    scene.store()
    pictures = Path(os.environ.get("WAYBILL_SCREENSHOTS", scene.directory))
    browser = scene.browser
    browser.sign_in("ada")
    found: dict[str, list[str]] = {}
    for theme in ("light", "dark"):
        for width, size in (("wide", WIDE), ("narrow", NARROW)):
            browser.look(dark=theme == "dark", size=size)
            for name, path in PAGES.items():
                browser.open(path)
                picture = f"{name}-{theme}-{width}"
                browser.screenshot(pictures / f"{picture}.png")
                faults = browser.violations() + [f"cut: {text}" for text in browser.cut_texts()]
                if browser.overflow() > 0:
                    faults.append(f"{browser.overflow()} pixels too wide")
                if faults:
                    found[picture] = faults
    assert found == {}
    errors = [entry["message"] for entry in browser.driver.get_log("browser") if entry["level"] == "SEVERE"]
    assert errors == []


def test_everything_can_be_reached_with_the_keyboard(scene: Scene) -> None:
    from selenium.webdriver.common.keys import Keys

    scene.store()
    browser = scene.browser
    browser.sign_in("ada")
    browser.open("/streams/flights")
    active = lambda: browser.driver.switch_to.active_element  # noqa: E731
    active().send_keys(Keys.TAB)
    assert active().text == "Skip to the content"
    active().send_keys(Keys.ENTER)
    for _step in range(20):
        active().send_keys(Keys.TAB)
        if active().tag_name == "summary":
            break
    assert active().tag_name == "summary"
    active().send_keys(Keys.ENTER)
    active().send_keys(Keys.TAB)
    assert active().get_attribute("name") == "reason"
