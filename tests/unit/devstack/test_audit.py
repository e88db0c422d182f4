"""The audit: which advisories concern what is locked, which are accepted, and what it says."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import httpx
import pytest

from devstack.supply_chain import acceptances, advisories, audit, locks, osv
from devstack.supply_chain.advisories import advisory_of
from devstack.supply_chain.locks import Ecosystem, Locked
from waybill.base.errors import StackError

ROOT = Path(__file__).parents[3]
TODAY = date(2026, 11, 25)


def document(name: str = "jinja2", ecosystem: str = "PyPI", **affected: Any) -> dict[str, Any]:
    events = [{"introduced": "0"}, {"fixed": "3.1.6"}]
    affected = affected or {"ranges": [{"type": "ECOSYSTEM", "events": events}]}
    return {
        "id": "GHSA-1",
        "aliases": ["CVE-2025-27516"],
        "summary": "Sandbox breakout",
        "affected": [{"package": {"ecosystem": ecosystem, "name": name}, **affected}],
    }


def ranges(*events: dict[str, str]) -> dict[str, Any]:
    return {"ranges": [{"type": "ECOSYSTEM", "events": list(events)}]}


def jinja(version: str) -> Locked:
    return Locked(Ecosystem.PYPI, "jinja2", version)


@pytest.mark.parametrize(
    ("affected", "version", "expected"),
    [
        (ranges({"introduced": "0"}, {"fixed": "3.1.6"}), "3.1.5", True),
        (ranges({"introduced": "0"}, {"fixed": "3.1.6"}), "3.1.6", False),
        (ranges({"introduced": "0"}, {"fixed": "3.1.6"}), "3.1.6rc1", True),
        (ranges({"introduced": "0"}, {"fixed": "3.1.6"}), "3.1.10", False),
        (ranges({"introduced": "3.0.0"}, {"fixed": "3.1.6"}), "2.99", False),
        (ranges({"introduced": "3.0.0"}, {"last_affected": "3.1.5"}), "3.1.5", True),
        (ranges({"introduced": "3.0.0"}, {"last_affected": "3.1.5"}), "3.1.5.post1", False),
        (ranges({"introduced": "0"}), "99", True),
        (ranges({"introduced": "0"}, {"fixed": "2"}, {"introduced": "3"}, {"fixed": "4"}), "2.5", False),
        (ranges({"introduced": "0"}, {"fixed": "2"}, {"introduced": "3"}, {"fixed": "4"}), "3.5", True),
        ({"versions": ["3.1.4", "3.1.5"]}, "3.1.5", True),
        ({"versions": ["3.1.4", "3.1.5"]}, "3.1.6", False),
        ({"ranges": [{"type": "GIT", "events": [{"introduced": "0"}]}]}, "3.1.5", False),
    ],
)
def test_versions_are_compared_with_ranges(affected: dict[str, Any], version: str, expected: bool) -> None:
    full = document(**affected)
    assert advisory_of(full).concerns(jinja(version)) is expected
    assert advisory_of(advisories.slim(full)).concerns(jinja(version)) is expected


def test_names_are_compared_as_the_index_does_and_only_within_it() -> None:
    assert advisory_of(document("Jinja2")).concerns(jinja("3.1.5"))
    assert not advisory_of(document("jinja2", "npm")).concerns(jinja("3.1.5"))


@pytest.mark.parametrize(("version", "expected"), [("4.1.72.Final", True), ("4.1.118.Final", False), ("4.1.73", True)])
def test_suffixes_of_maven_are_none(version: str, expected: bool) -> None:
    netty = document("io.netty:netty", "Maven", **ranges({"introduced": "0"}, {"fixed": "4.1.118.Final"}))
    assert advisory_of(netty).concerns(Locked(Ecosystem.MAVEN, "io.netty:netty", version)) is expected


def test_a_version_that_cannot_be_compared_is_not_taken_for_safe() -> None:
    with pytest.raises(StackError, match=r"jinja2 r09: cannot tell whether GHSA-1 concerns it.*Compare by hand"):
        advisory_of(document()).concerns(jinja("r09"))


@pytest.mark.parametrize("events", [[{"fixed": "1"}], [{"introduced": "0"}, {"repaired": "1"}]])
def test_events_of_another_form_are_refused(events: list[dict[str, str]]) -> None:
    with pytest.raises(ValueError, match="the event"):
        advisory_of(document(**ranges(*events)))


# --- accepted ones ----------------------------------------------------------------------------------------------------

ENTRY = """
- id: {id}
  package: {package}
  by: ada
  accepted_on: 2026-11-01
  until: {until}
  why: Templates are ours.
"""


def audited(tmp_path: Path, version: str = "3.1.5", accepted: str = "") -> tuple[audit.Report, list[str]]:
    """Audit a checkout whose locks name one vulnerable version, against a stored file, with no server."""
    checkout = tmp_path / "checkout"
    checkout.mkdir(exist_ok=True)
    for name in locks.REQUIREMENTS:
        (checkout / name).write_text(f"jinja2=={version} \\\n    --hash=sha256:00\n    # via airflow\n")
    (tmp_path / "accepted.yaml").write_text(accepted)
    advisories.write_advisories(tmp_path / "advisories.json", date(2026, 10, 1), "a test", [document()])
    said: list[str] = []
    report = audit.audit(
        checkout,
        TODAY,
        is_offline=True,
        stored=tmp_path / "advisories.json",
        accepted=tmp_path / "accepted.yaml",
        say=said.append,
    )
    return report, said


def test_a_vulnerable_version_fails_and_all_that_is_needed_is_said(tmp_path: Path) -> None:
    report, said = audited(tmp_path)
    assert not report.passes
    (line,) = (each for each in said if each.startswith("VULNERABLE"))
    for part in ("jinja2 3.1.5", "requirements.txt", "GHSA-1", "CVE-2025-27516", "Sandbox breakout", "Fixed in 3.1.6."):
        assert part in line
    assert any("collected on 2026-10-01" in each for each in said)
    assert any("55 days old" in each and "make audit-update" in each for each in said)


def test_a_fixed_version_passes(tmp_path: Path) -> None:
    report, said = audited(tmp_path, "3.1.6")
    assert report.passes
    assert not any("VULNERABLE" in each for each in said)


@pytest.mark.parametrize("name", ["GHSA-1", "CVE-2025-27516"])
def test_an_accepted_advisory_passes_until_its_last_day_and_is_said(tmp_path: Path, name: str) -> None:
    report, said = audited(tmp_path, accepted=ENTRY.format(id=name, package="jinja2", until=TODAY))
    assert report.passes
    assert any("Accepted by ada on 2026-11-01 until 2026-11-25: Templates are ours." in each for each in said)


def test_an_expired_acceptance_fails(tmp_path: Path) -> None:
    report, said = audited(tmp_path, accepted=ENTRY.format(id="GHSA-1", package="jinja2", until="2026-11-24"))
    assert not report.passes
    (line,) = (each for each in said if each.startswith("EXPIRED"))
    assert "jinja2 3.1.5" in line
    assert "Accepted by ada on 2026-11-01 until 2026-11-24" in line


@pytest.mark.parametrize(("name", "package"), [("GHSA-2", "jinja2"), ("GHSA-1", "flask")])
def test_an_acceptance_holds_for_one_advisory_of_one_package(tmp_path: Path, name: str, package: str) -> None:
    report, said = audited(tmp_path, accepted=ENTRY.format(id=name, package=package, until=TODAY))
    assert not report.passes
    assert f"not needed any more: {name} of {package} in accepted.yaml: remove it" in said


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (ENTRY.format(id="A", package="b", until="soon"), "until is 'soon', and must be a day"),
        (ENTRY.format(id="A", package="b", until="2026-10-31"), "before it begins"),
        (ENTRY.format(id="A", package="b", until=TODAY).replace("Templates are ours.", "''"), "why is ''"),
        (ENTRY.format(id="A", package="b", until=TODAY).replace("  by: ada\n", ""), "exactly the fields"),
        ("id: A", "must be a list"),
        ("- [", "cannot be read"),
    ],
)
def test_an_acceptance_that_is_not_complete_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "accepted.yaml"
    path.write_text(text)
    with pytest.raises(StackError, match=complaint):
        acceptances.read_acceptances(path)


# --- sources ----------------------------------------------------------------------------------------------------------


def test_osv_is_asked_for_each_package_and_page_and_withdrawn_advisories_are_left_out() -> None:
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        asked.append((body["package"]["name"], body.get("page_token", "")))
        if body["package"]["name"] == "flask":
            return httpx.Response(200, json={})
        if "page_token" not in body:
            return httpx.Response(200, json={"vulns": [document()], "next_page_token": "2"})
        return httpx.Response(200, json={"vulns": [document() | {"id": "GHSA-3", "withdrawn": "2026-01-01"}]})

    found = osv.query([("PyPI", "jinja2"), ("PyPI", "flask")], httpx.MockTransport(answer))
    assert [each["id"] for each in found] == ["GHSA-1"]
    assert sorted(asked) == [("flask", ""), ("jinja2", ""), ("jinja2", "2")]


@pytest.mark.parametrize(
    "response",
    [httpx.Response(503), httpx.Response(200, text="<html>"), httpx.Response(200, json=[]), httpx.ConnectError("no")],
)
def test_an_answer_that_is_none_is_not_taken_for_no_advisory(response: httpx.Response | httpx.HTTPError) -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        if isinstance(response, httpx.HTTPError):
            raise response
        return response

    with pytest.raises(osv.OsvUnavailable, match="osv"):
        osv.query([("PyPI", "jinja2")], httpx.MockTransport(answer))


def test_without_osv_the_stored_file_is_used_and_an_update_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_: object) -> list[dict[str, Any]]:
        raise osv.OsvUnavailable("osv does not answer")

    monkeypatch.setattr(osv, "query", away)
    said: list[str] = []
    audit.audit(ROOT, TODAY, say=said.append)
    assert said[0] == "osv does not answer: compared with the stored file instead"
    before = advisories.STORED.read_bytes()
    with pytest.raises(osv.OsvUnavailable):
        audit.audit(ROOT, TODAY, update=True, say=said.append)
    assert advisories.STORED.read_bytes() == before


def test_an_update_stores_what_the_next_audit_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(osv, "query", lambda _: [document() | {"details": "long", "references": []}])
    stored = tmp_path / "advisories.json"
    audit.audit(ROOT, TODAY, update=True, stored=stored, say=lambda _: None)
    file = advisories.read_advisories(stored)
    assert (file.collected, file.is_complete) == (TODAY, True)
    assert file.advisories == (advisory_of(document()),)
    assert "details" not in stored.read_text()


@pytest.mark.parametrize("text", ["", "[]", '{"v": 2}', '{"v": 1}', '{"v": 1, "collected": "x"}'])
def test_a_stored_file_of_another_form_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "advisories.json").write_text(text)
    with pytest.raises(StackError, match=r"advisories\.json"):
        advisories.read_advisories(tmp_path / "advisories.json")


# --- this checkout ----------------------------------------------------------------------------------------------------


def test_the_locks_of_this_checkout_have_no_stored_advisory_that_is_not_accepted() -> None:
    """On the day of the stored file, so that this test does not fail by the mere passing of time; `make audit` does."""
    said: list[str] = []
    report = audit.audit(ROOT, advisories.read_advisories().collected, is_offline=True, say=said.append)
    assert report.passes, "\n".join(said)
    assert report.unused == []


def test_each_stored_advisory_concerns_a_package_that_is_locked() -> None:
    names = {(each.ecosystem.value, each.name) for each in locks.locked_packages(ROOT)}
    for advisory in advisories.read_advisories().advisories:
        assert names & {(each.ecosystem, each.name) for each in advisory.affected}, advisory.id


def test_each_jar_has_coordinates_that_fit_its_file() -> None:
    assert len(locks.read_jars()) > 40
    for line in locks.COORDINATES.read_text().splitlines()[1:]:
        file, coordinates = line.split()
        _, artifact, version = coordinates.split(":")
        assert file == f"{artifact}-{version}.jar"


def test_a_jar_without_coordinates_is_named(tmp_path: Path) -> None:
    (tmp_path / "jars.sha256").write_text(f"{'0' * 64}  new-1.0.jar\n")
    with pytest.raises(StackError, match=r"no coordinates of new-1\.0\.jar"):
        locks.read_jars(tmp_path / "jars.sha256")


def test_a_lock_that_is_missing_or_empty_is_not_a_lock_without_advisories(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="cannot be read"):
        locks.read_requirements(tmp_path / "requirements.txt")
    (tmp_path / "requirements.txt").write_text("# nothing\n")
    with pytest.raises(StackError, match="names no package"):
        locks.read_requirements(tmp_path / "requirements.txt")
