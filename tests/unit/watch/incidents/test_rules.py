"""The rules of incidents: one incident and one message for each broken promise, whatever happens to watches."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from waybill.config.models.alerts import Alerts
from waybill.config.models.promises import PromiseSeverity
from waybill.watch.incidents.finding import Finding, Verdict
from waybill.watch.incidents.incident import Acknowledgement, Incident, IncidentBook, NotificationKind
from waybill.watch.incidents.rules import CLAIM, acknowledge, advance, channel_findings, claim, settle

MINUTE = 60_000
NOON = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp() * 1000)
CHANNELS = {"mail": {"type": "email", "to": ["a@b.c"]}, "pager": {"type": "webhook", "connection": "pd"}}
ALERTS = Alerts.model_validate({"channels": CHANNELS, "escalate_to": ["pager"]})
QUIET = Alerts.model_validate(
    {"channels": CHANNELS, "quiet_hours": {"begin": "22:00", "end": "07:00", "time_zone": "UTC"}}
)


def finding(verdict: Verdict = Verdict.BROKEN, **fields: Any) -> Finding:
    known = {"stream": "flights", "promise": "archive_lag", "severity": PromiseSeverity.CRITICAL, "figure": "20 min"}
    return Finding(verdict=verdict, **{**known, **fields})


class Watches:
    """Watches one after the other, each of which sends its messages; `sent` holds them."""

    def __init__(self, alerts: Alerts = ALERTS, at_ms: int = NOON) -> None:
        self.alerts, self.now_ms = alerts, at_ms
        self.book = IncidentBook()
        self.sent: list[tuple[str, str]] = []

    def watch(self, *findings: Finding, minutes: int = 1, broken: tuple[str, ...] = ()) -> list[tuple[str, str]]:
        """Watch once, after some minutes; channels in `broken` refuse messages. Return what was sent."""
        self.now_ms += minutes * MINUTE
        found = [*findings, *channel_findings(self.book, self.alerts)]
        self.book = advance(self.book, found, self.alerts, self.now_ms)
        self.book, claimed = claim(self.book, self.now_ms, self.alerts.channels)
        results = {each.id: "refused" if each.channel in broken else None for each in claimed}
        self.book = settle(self.book, results, self.now_ms)
        sent = [(str(each.kind), each.channel) for each in claimed if results[each.id] is None]
        self.sent += sent
        return sent

    @property
    def incident(self) -> Incident:
        [incident] = self.book.incidents
        return incident


def test_broken_promise_is_told_once_and_its_end_with_how_long_it_lasted() -> None:
    watches = Watches()
    assert watches.watch(finding(since_ms=NOON - 30 * MINUTE)) == [("opened", "mail")]
    assert [watches.watch(finding()) for _ in range(20)] == [[]] * 20
    assert [watches.watch(finding(Verdict.KEPT)) for _ in range(5)] == [[]] * 5, "it must be kept for five minutes"
    assert watches.watch(finding(Verdict.KEPT)) == [("resolved", "mail")]
    assert watches.incident.lasted_ms == (30 + 22) * MINUTE
    assert watches.watch(finding(Verdict.KEPT)) == []


def test_flapping_figure_is_one_incident() -> None:
    watches = Watches()
    for _ in range(20):
        watches.watch(finding())
        watches.watch(finding(Verdict.KEPT), minutes=4)
    assert watches.sent == [("opened", "mail"), ("escalated", "pager")]
    assert watches.incident.is_open


def test_what_cannot_be_measured_neither_opens_nor_ends_an_incident() -> None:
    watches = Watches()
    assert watches.watch(finding(Verdict.UNKNOWN)) == []
    watches.watch(finding())
    for _ in range(30):
        watches.watch(finding(Verdict.UNKNOWN))
    assert watches.incident.is_open


def test_incident_is_escalated_and_reminded_until_a_person_acknowledges_it() -> None:
    watches = Watches()
    watches.watch(finding())
    assert watches.watch(finding(), minutes=60) == [("escalated", "pager")]
    assert watches.watch(finding(), minutes=239) == []
    assert watches.watch(finding()) == [("reminder", "mail"), ("reminder", "pager")]
    watches.book = acknowledge(watches.book, watches.incident.id, Acknowledgement("ann", watches.now_ms, "on it"))
    assert watches.watch(finding(), minutes=1000) == []
    for _ in range(6):
        watches.watch(finding(Verdict.KEPT))
    assert watches.sent[-2:] == [("resolved", "mail"), ("resolved", "pager")]


def test_warning_waits_for_the_end_of_the_quiet_hours_and_a_critical_alert_does_not() -> None:
    night = int(datetime(2026, 3, 1, 23, tzinfo=UTC).timestamp() * 1000)
    warning = finding(severity=PromiseSeverity.WARNING)
    watches = Watches(QUIET, night)
    assert watches.watch(warning) == []
    assert watches.watch(warning, finding(promise="named_stop")) == [("opened", "mail"), ("opened", "pager")]
    watches = Watches(QUIET, night)
    watches.watch(warning)
    assert watches.watch(warning, minutes=8 * 60) == [("opened", "mail"), ("opened", "pager")]


def test_warning_that_was_over_within_the_quiet_hours_is_told_in_one_message() -> None:
    watches = Watches(QUIET, int(datetime(2026, 3, 1, 23, tzinfo=UTC).timestamp() * 1000))
    warning = finding(severity=PromiseSeverity.WARNING)
    watches.watch(warning)
    for _ in range(6):
        watches.watch(replace(warning, verdict=Verdict.KEPT))
    assert watches.sent == []
    assert watches.watch(minutes=9 * 60) == [("resolved", "mail"), ("resolved", "pager")]


def test_channel_that_refuses_messages_is_an_incident_on_the_other_channels() -> None:
    watches = Watches(Alerts.model_validate({"channels": CHANNELS}))
    assert watches.watch(finding(), broken=("mail",)) == [("opened", "pager")]
    assert watches.watch(finding(), broken=("mail",)) == []
    assert watches.watch(finding(), broken=("mail",)) == [("opened", "pager")], "of the channel"
    assert {incident.promise for incident in watches.book.incidents} == {"archive_lag", "channel"}
    assert watches.watch(finding(), minutes=5) == [("opened", "mail")], "the message is tried again"
    for _ in range(6):
        watches.watch(finding())
    assert watches.sent[-1] == ("resolved", "pager"), "of the channel"


def test_stream_that_is_removed_from_the_config_ends_its_incident() -> None:
    watches = Watches()
    watches.watch(finding())
    assert watches.watch() == [("resolved", "mail")]
    assert watches.incident.outcome == "it is not watched any more"


def test_watch_that_dies_before_it_records_that_it_sent_is_followed_by_one_that_sends_again() -> None:
    book = advance(IncidentBook(), [finding()], ALERTS, NOON)
    book, claimed = claim(book, NOON, ALERTS.channels)
    assert [each.kind for each in claimed] == [NotificationKind.OPENED]
    later, again = claim(book, NOON + MINUTE, ALERTS.channels)
    assert (later, again) == (book, []), "another watch leaves a claimed message alone"
    _, again = claim(book, NOON + int(CLAIM.total_seconds() * 1000), ALERTS.channels)
    assert [each.id for each in again] == [each.id for each in claimed]


def test_book_is_the_same_after_it_was_stored() -> None:
    watches = Watches()
    watches.watch(finding(), finding(promise="paused"), broken=("mail",))
    watches.book = acknowledge(watches.book, watches.book.incidents[0].id, Acknowledgement("ann", 1, "on it"))
    assert IncidentBook.parse(watches.book.document()) == watches.book


@given(
    st.lists(
        st.tuples(
            st.sampled_from(Verdict), st.sampled_from(Verdict), st.integers(1, 90), st.sampled_from([(), ("mail",)])
        ),
        max_size=60,
    )
)
def test_at_most_one_incident_is_open_and_each_channel_is_told_of_its_end_once(
    history: list[tuple[Verdict, Verdict, int, tuple[str, ...]]],
) -> None:
    """Against an oracle: after a history without disturbances at its end, nothing is left to send."""
    watches = Watches()
    for lag, stop, minutes, broken in history:
        watches.watch(finding(lag), finding(stop, promise="named_stop"), minutes=minutes, broken=broken)
        keys = [incident.key for incident in watches.book.incidents if incident.is_open]
        assert len(keys) == len(set(keys))
    for _ in range(3):
        for _ in range(10):
            watches.watch(finding(Verdict.KEPT), finding(Verdict.KEPT, promise="named_stop"), minutes=10)
    assert watches.book.outbox == ()
    assert not any(incident.is_open for incident in watches.book.incidents)
    told = [incident for incident in watches.book.incidents if incident.channels]
    assert sum(kind == "resolved" for kind, _ in watches.sent) == sum(len(incident.channels) for incident in told)


def test_incident_is_kept_as_long_as_a_message_about_it_waits() -> None:
    """A thousand incidents that end in one watch, while the channel refuses messages for five weeks."""
    watches = Watches(Alerts.model_validate({"channels": {"mail": CHANNELS["mail"]}}))
    broken = [finding(stream=f"stream_{number}") for number in range(1_000)]
    watches.watch(*broken, broken=("mail",))
    for minutes in (1, 10, 5 * 7 * 24 * 60):
        watches.watch(*(replace(each, verdict=Verdict.KEPT) for each in broken), minutes=minutes, broken=("mail",))
    known = {incident.id for incident in watches.book.incidents}
    assert len(watches.book.outbox) == 1_000
    assert {each.incident for each in watches.book.outbox} <= known
