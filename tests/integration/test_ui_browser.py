"""The pages in a real browser, through Airflow's login: what people see and do, and what they cannot do."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import signal
import time
from collections.abc import Collection, Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from airflow_pages import BASE, Server
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pages_browser import CHROMIUM, DRIVER, NARROW, WIDE, Browser, open_browser
from sample_status import NOW_MS, sample_status
from small_png import small_png

from devstack import Stack
from waybill.archive.ingest import Outcome, plan_lanes, run_lane
from waybill.config.connections import Connection, find_connection
from waybill.config.models import Config, load_config
from waybill.config.names import status_key
from waybill.interfaces.web.csrf import COOKIE, csrf_token, new_page_key
from waybill.services.store import Store
from waybill.tables.partition.partition_run import run_partition
from waybill.tables.partition.tasks import run_task
from waybill.watch.promises.status import ChainRange, PauseStatus, StreamStatus, WatchStatus
from waybill.watch.promises.watch_run import run_watch

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
PICTURES = {
    "streams-light-wide",
    "streams-dark-wide",
    "streams-light-narrow",
    "stream-light-wide",
    "stream-dark-wide",
    "stream-dark-narrow",
    "incidents-light-wide",
    "kafka-light-wide",
    "replays-light-wide",
    "cost-light-wide",
}
"""Those of the user guide."""
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
        is_time = field.name.endswith("_ms") and isinstance(old, int) and old > NOW_MS / 2  # others are durations
        changed[field.name] = old + by_ms if is_time else shifted(old, by_ms)
    return replace(value, **changed)


def fresh(status: WatchStatus | None = None) -> WatchStatus:
    """Return the sample as if the watch had measured now."""
    return shifted(status or sample_status(), time.time_ns() // 1_000_000 - NOW_MS)  # type: ignore[no-any-return]


class Scene:
    """The server, the browser, and what the watch stored."""

    def __init__(self, server: Server, browser: Browser, directory: Path, reader: httpx.Client) -> None:
        self.server, self.browser, self.directory, self.reader = server, browser, directory, reader
        self.config: Config = load_config(Path(server.environment["WAYBILL_CONFIG"]))

    def store(self, status: WatchStatus | None = None) -> None:
        """Store a status document, and wait until the server has read it."""
        status = fresh(status)
        with Store.of(self.config.storage) as store:
            store.replace(status_key(store.prefix), status.content())
        self.wait_for(status.at_ms)

    def watch(self, *, away: Collection[str] = ()) -> None:
        """Watch once, and wait until the server has read what the watch stored.

        `away`: connections of services that this watch does not reach.
        """

        def find(conn_id: str) -> Connection:
            found = find_connection(conn_id)
            if conn_id not in away:
                return found
            extra = {
                **found.extra,
                **({"bootstrap.servers": "127.0.0.1:1"} if "bootstrap.servers" in found.extra else {}),
            }
            return found.model_copy(update={"host": "127.0.0.1", "port": 1, "extra": extra})

        run_watch(self.config, find=find, directory=self.directory)
        with Store.of(self.config.storage) as store:
            self.wait_for(WatchStatus.parse(store.read(status_key(store.prefix)), "status").at_ms)

    def wait_for(self, at_ms: int) -> None:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            answer = self.reader.get("/waybill/ui/api/status")
            if answer.is_success and answer.json()["at_ms"] == at_ms:
                return
            time.sleep(0.2)
        raise AssertionError("the server does not read the status document")

    def runs(self, user: str, dag: str) -> list[dict[str, Any]]:
        with self.server.browser(user) as client:
            answer = client.get(f"/api/v2/dags/{dag}/dagRuns")
            return list(answer.json()["dag_runs"])


@pytest.fixture(scope="module")
def shared_scene(airflow_pages: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """One browser for all tests: starting it, and signing in, takes longer than most of them."""
    with open_browser(airflow_pages.root) as browser, airflow_pages.browser("ada") as reader:
        yield Scene(airflow_pages, browser, tmp_path_factory.mktemp("watch"), reader)


@pytest.fixture
def scene(shared_scene: Scene) -> Scene:
    shared_scene.browser.look(dark=False)
    shared_scene.browser.driver.get_log("browser")  # those of the test before
    return shared_scene


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
    browser.wait(lambda: set(rows()) >= {"flights", "paused"})
    browser.all("#filter-text")[0].send_keys("flig")
    browser.wait(lambda: rows() == ["flights"])
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
    browser.wait(lambda: "Not refreshed while a form is open" in browser.text)
    assert "another.table" in browser.text, "a form is open"
    age = browser.all(".fresh time")[0].text
    browser.wait(lambda: browser.all(".fresh time")[0].text != age)  # ages go on
    # The form is closed, and the keyboard is still on its summary: nothing hinders the refresh.
    browser.all("details.action summary")[0].click()
    browser.wait(lambda: "another.table" not in browser.text)
    assert browser.driver.switch_to.active_element.text == "Pause"
    assert browser.all("#poll-note")[0].text == ""


def test_refresh_keeps_the_place_of_the_keyboard_opened_commands_and_scrolled_tables(scene: Scene) -> None:
    scene.store()
    browser = scene.browser
    browser.sign_in("ada")
    browser.look(dark=False, size=(700, 900))  # too narrow for the tables
    browser.open("/streams/flights")
    script = """
        const box = document.querySelector('.box[aria-label="Promises of the stream"]');
        box.scrollLeft = 20;
        document.querySelector("dl.figures details.how").open = true;
        document.querySelector("#quarantine ~ article a").focus();
        document.querySelector("h1").id = "of the page before";
        return document.activeElement.textContent;"""
    focused = browser.driver.execute_script(script)
    browser.wait(lambda: not browser.all("[id='of the page before']"))
    assert browser.driver.switch_to.active_element.text == focused
    assert browser.all("dl.figures details.how")[0].get_attribute("open") is not None
    assert browser.all('.box[aria-label="Promises of the stream"]')[0].get_property("scrollLeft") == 20
    browser.all("dl.figures details.how button.copy")[0].click()
    browser.driver.execute_script("getSelection().removeAllRanges(); document.querySelector('h1').id = 'again'")
    browser.wait(lambda: not browser.all("#again"))  # the keyboard is on Copy, which hinders nothing


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
    assert browser.all("h1")[0].text == "Ordered", browser.text
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
    scene.watch()
    browser.open("/streams/flights")
    assert "paused by ulf" in browser.text
    assert "Kafka is upgraded" in browser.text
    browser.act("resume", "the upgrade is done")
    scene.watch()
    browser.open("/incidents")
    assert "the upgrade is done" in browser.text, "actions of people are listed"


@pytest.fixture
def admin(stack: Stack) -> Iterator[AdminClient]:
    """Kafka's administration, while the topic exists."""
    client = AdminClient({"bootstrap.servers": stack.bootstrap_servers})
    client.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(timeout=30)
    yield client
    client.delete_topics([TOPIC])[TOPIC].result(timeout=30)


def make_gap(scene: Scene, stack: Stack, admin: AdminClient) -> None:
    """Archive messages, let Kafka delete those that follow, and let ingest stop at the gap."""
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
        key, header = (EVIL.encode(), EVIL) if number % 2 else (b"UA1545", "producer")
        producer.produce(TOPIC, value, key, 0, headers=[(header, key)])
    assert producer.flush(30) == 0


def test_gap_is_accepted_by_an_admin_alone_and_hostile_messages_are_text(
    scene: Scene, stack: Stack, admin: AdminClient
) -> None:
    make_gap(scene, stack, admin)
    scene.watch()
    browser = scene.browser
    browser.sign_in("ulf")
    browser.open("/streams/flights")
    assert "RetentionGap" in browser.text
    assert browser.all('form[action$="/actions/accept-gap"]') == [], "an operator may not accept a loss"
    browser.sign_in("ada")
    browser.open("/streams/flights")
    browser.act("accept-gap", f"lost in the upgrade {EVIL}")
    assert browser.all("h1")[0].text == "Done", browser.text
    assert "ingest resumes at offset 15" in browser.text
    (lane,) = plan_lanes(scene.config, "flights")
    assert run_lane(scene.config, lane).partitions[0].outcome is Outcome.UP_TO_DATE
    scene.watch()
    for path in ("/incidents", f"/trace?stream=flights&topic={TOPIC}&partition=0&offset=3"):
        browser.open(path)
        assert EVIL in browser.text
        assert_no_script_ran(browser)
    assert faults_of(browser) == [], "on the page of a traced message"
    if "WAYBILL_SCREENSHOTS" in os.environ:
        run_partition(scene.config, "flights", lambda job, tasks: [run_task(job, task) for task in tasks])
        browser.open(f"/trace?stream=flights&topic={TOPIC}&partition=0&offset=4")
        store_picture(browser, "trace-light-wide", browser.full_page())


def assert_no_script_ran(browser: Browser) -> None:
    assert browser.driver.execute_script("return window.__hit") is None
    assert len(browser.all("script")) == 2
    assert browser.all('img[src="x"]') == []


def test_names_of_topics_and_reasons_of_people_are_text_in_lists_and_bars(scene: Scene) -> None:
    gap = ChainRange(2_000, 2_300, "RetentionGap", EVIL, EVIL)

    def evil(stream: StreamStatus) -> StreamStatus:
        assert stream.details is not None
        return replace(
            stream,
            topic_partitions=tuple(replace(tp, topic=EVIL, gaps=(gap,)) for tp in stream.topic_partitions),
            stops=tuple(replace(stop, topic=EVIL, message=EVIL) for stop in stream.stops),
            pauses=(PauseStatus("ingest", EVIL, NOW_MS, EVIL),),
            details=replace(stream.details, gaps={f"{EVIL}/1": (gap,)}),
        )

    sample = sample_status()
    scene.store(replace(sample, streams=(evil(sample.streams[0]), *sample.streams[1:])))
    browser = scene.browser
    browser.sign_in("ada")
    for path in ("/", "/kafka", "/streams/flights"):
        browser.open(path)
        assert EVIL in browser.text
        assert_no_script_ran(browser)
    titles = [each.get_attribute("textContent") for each in browser.all("rect.kind-gap title")]
    assert titles
    assert all(EVIL in title for title in titles)
    assert browser.driver.execute_script("return document.querySelector('.chain svg *:not(rect, title)')") is None


def test_viewer_sees_everything_and_can_do_nothing(scene: Scene) -> None:
    scene.store()
    browser = scene.browser
    browser.sign_in("vic")
    browser.open("/streams/flights")
    assert browser.all('main form[method="post"]') == []
    assert browser.all("details.action button:disabled")
    # With a token that is valid for this user, only the role is left to refuse the action.
    own = scene.server.environment["AIRFLOW__API_AUTH__JWT_SECRET"].encode()
    secret = hmac.new(own, b"waybill-ui-csrf", hashlib.sha256).digest()
    page_key = new_page_key(time.time_ns() // 1_000_000)
    token = csrf_token(secret, browser.driver.get_cookie(COOKIE)["value"], "vic", page_key)
    for sent, why in ((token, "needs the role"), ("guess", "load it again")):
        status, answer = browser.driver.execute_async_script(
            """const [url, csrf, done] = arguments;
            const body = new URLSearchParams({stream: "flights", reason: "x", csrf});
            fetch(url, {method: "POST", body}).then(async (answer) => done([answer.status, await answer.text()]));""",
            f"{scene.server.root}/waybill/ui/actions/pause",
            sent,
        )
        assert (status, why in answer) == (403, True), answer


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


@pytest.mark.stack_alone
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


@pytest.mark.usefixtures("admin")
def test_while_kafka_and_zookeeper_are_away_the_last_figures_stay_with_their_age(scene: Scene, stack: Stack) -> None:
    produce(stack, 50)
    scene.watch()
    browser = scene.browser
    browser.sign_in("ada")
    browser.open("/")
    cell = lambda name: browser.all(f'#streams tbody td[data-label="{name}"]')[0].text  # noqa: E731
    known = browser.wait(lambda: [cell("not archived"), cell("archive lag")])
    scene.watch(away=("kafka_default",))
    browser.open("/")
    assert "Kafka does not answer" in browser.text
    away = browser.wait(lambda: [cell("not archived"), cell("archive lag")])
    assert away[0] == known[0] != "0"
    assert away[1].split(" s")[0] == known[1].split(" s")[0]
    assert re.search(r" s\s+\d.* ago", away[1]), away
    scene.watch(away=("kafka_default", "zookeeper_default"))
    browser.open("/streams/flights")
    assert "ZooKeeper does not answer" in browser.text
    assert f"{TOPIC}/0" in browser.text
    assert re.search(r"archive lag\s[\d,]+ s\s.*\d+ s ago", browser.text), browser.text


# --- how it looks ---


def test_pages_have_no_accessibility_faults_and_nothing_is_cut_in_any_theme_or_width(scene: Scene) -> None:
    """WAYBILL_SCREENSHOTS=docs/images/ui stores the pictures of the user guide."""
    scene.store()
    browser = scene.browser
    browser.sign_in("ada")
    found: dict[str, list[str]] = {}
    pictures: dict[str, bytes] = {}
    for theme in ("light", "dark"):
        for width, size in (("wide", WIDE), ("narrow", NARROW)):
            browser.look(dark=theme == "dark", size=size)
            for name, path in PAGES.items():
                browser.open(path)
                picture = f"{name}-{theme}-{width}"
                if "WAYBILL_SCREENSHOTS" in os.environ and picture in PICTURES:
                    pictures[picture] = browser.full_page()
                found[picture] = faults_of(browser) + (cut_tables(browser) if width == "wide" else [])
                if name in ("streams", "stream"):  # all forms and commands are open
                    browser.driver.execute_script(
                        "for (const each of document.querySelectorAll('details')) each.open = 1"
                    )
                    found[f"{picture}-open"] = faults_of(browser)
    browser.sign_in("ulf")
    browser.open("/streams/flights")
    browser.act("retry", "to look at the result")
    found["result"] = faults_of(browser)
    assert {picture: faults for picture, faults in found.items() if faults} == {}
    errors = [entry["message"] for entry in browser.driver.get_log("browser") if entry["level"] == "SEVERE"]
    assert errors == []
    for picture, content in pictures.items():
        store_picture(browser, picture, content)


def store_picture(browser: Browser, name: str, content: bytes) -> None:
    """Store a picture of the user guide. The page is left."""
    path = Path(os.environ["WAYBILL_SCREENSHOTS"]) / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(small_png(*browser.pixels(content)))


def cut_tables(browser: Browser) -> list[str]:
    """Return tables that are wider than a wide screen: their last columns would be seen by few."""
    script = """return [...document.querySelectorAll(".box")].filter((each) => each.scrollWidth > each.clientWidth + 1)
        .map((each) => `wider than the screen: ${each.getAttribute("aria-label")}`)"""
    return list(browser.driver.execute_script(script))


def faults_of(browser: Browser) -> list[str]:
    faults = browser.violations() + browser.layout_faults()
    return [*faults, f"{browser.overflow()} pixels too wide"] if browser.overflow() > 0 else faults


def test_check_of_the_layout_finds_texts_that_are_too_wide_or_lie_on_others(scene: Scene) -> None:
    scene.store()
    browser = scene.browser
    browser.sign_in("ada")
    browser.open("/cost")
    assert browser.layout_faults() == []
    browser.driver.execute_script(
        """const [h2] = document.querySelectorAll("h2");
        h2.textContent = "too-wide-".repeat(9);
        Object.assign(h2.style, {width: "100px", overflowWrap: "normal", whiteSpace: "nowrap"});
        document.querySelector("caption").style.marginTop = "-40px";"""
    )
    assert {fault.partition(":")[0] for fault in browser.layout_faults()} >= {"wider than its box"}
    assert any(" lies on " in fault for fault in browser.layout_faults())


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
