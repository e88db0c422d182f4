"""Compares what is locked with known advisories, less those that are accepted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from devstack.supply_chain import acceptances, advisories, osv
from devstack.supply_chain.acceptances import Acceptance
from devstack.supply_chain.advisories import Advisory, AdvisoryFile
from devstack.supply_chain.locks import Locked, locked_packages
from waybill.base.errors import StackError

OLD_DAYS = 30
"""The age at which a stored file is called old."""


@dataclass(frozen=True)
class Finding:
    """An advisory that concerns a locked package."""

    locked: Locked
    advisory: Advisory
    locks: tuple[str, ...]
    """The names of the files that lock it."""
    acceptance: Acceptance | None = None

    def __str__(self) -> str:
        names = ", ".join((self.advisory.id, *self.advisory.aliases))
        fixed = " or ".join(self.advisory.fixed_versions(self.locked)) or "no version that is known"
        return f"{self.locked} ({', '.join(self.locks)}): {names}: {self.advisory.summary}. Fixed in {fixed}."


@dataclass
class Report:
    """What an audit found."""

    open: list[Finding] = field(default_factory=list)
    """Not accepted."""
    accepted: list[Finding] = field(default_factory=list)
    expired: list[Finding] = field(default_factory=list)
    """Accepted until a day that has passed."""
    unused: list[Acceptance] = field(default_factory=list)
    """Accepted, but nothing that is locked has this advisory any more."""

    @property
    def passes(self) -> bool:
        """Whether nothing is left to decide. An acceptance that is not needed is reported, and no fault."""
        return not self.open and not self.expired


def compare(
    locked: Mapping[Locked, tuple[str, ...]],
    known: Iterable[Advisory],
    accepted: Sequence[Acceptance],
    today: date,
) -> Report:
    """Return what concerns the locked packages. Raises `StackError` if a version cannot be compared."""
    report = Report(unused=list(accepted))
    of_package: dict[tuple[str, str], list[Advisory]] = {}
    for advisory in known:
        for name in {(each.ecosystem, each.name) for each in advisory.affected}:
            of_package.setdefault(name, []).append(advisory)
    for package, locks in sorted(locked.items()):
        for advisory in of_package.get((package.ecosystem, package.name), []):
            if advisory.concerns(package):
                _sort(report, package, advisory, locks, accepted, today)
    return report


def _sort(
    report: Report,
    package: Locked,
    advisory: Advisory,
    locks: tuple[str, ...],
    accepted: Sequence[Acceptance],
    today: date,
) -> None:
    names = {advisory.id, *advisory.aliases}
    fitting = [each for each in accepted if each.id in names and each.package == package.name]
    report.unused = [each for each in report.unused if each not in fitting]
    if not fitting:
        report.open.append(Finding(package, advisory, locks))
        return
    last = max(fitting, key=lambda each: each.until)
    group = report.accepted if today <= last.until else report.expired
    group.append(Finding(package, advisory, locks, last))


def audit(
    root: Path,
    today: date,
    *,
    update: bool = False,
    is_offline: bool = False,
    stored: Path = advisories.STORED,
    accepted: Path = acceptances.ACCEPTED,
    say: Callable[[str], None] = print,
) -> Report:
    """Compare the locks of a checkout, say what was found, and return it.

    OSV is asked; where it does not answer, and with `is_offline`, the stored file is used, and its date is said.
    `update`: store OSV's answer; then `OsvUnavailable` is raised if it does not answer.
    """
    locked = locked_packages(root)
    known = _advisories(locked, today, update=update, is_offline=is_offline, stored=stored, say=say)
    report = compare(locked, known, acceptances.read_acceptances(accepted), today)
    _print(report, say)
    jars = sum(each.ecosystem != "PyPI" for each in locked)
    figures = f"{len(locked) - jars} packages and {jars} jars, {len(report.open)} with an open advisory"
    say(f"{figures}, {len(report.expired)} expired, {len(report.accepted)} accepted")
    return report


def _advisories(
    locked: Iterable[Locked], today: date, *, update: bool, is_offline: bool, stored: Path, say: Callable[[str], None]
) -> Sequence[Advisory]:
    if not is_offline:
        packages = sorted({(each.ecosystem.value, each.name) for each in locked})
        try:
            documents = osv.query(packages)
            found = [advisories.advisory_of(advisories.slim(each)) for each in documents]
        except osv.OsvUnavailable as error:
            if update:
                raise
            say(f"{error}: compared with the stored file instead")
        except (KeyError, ValueError, TypeError) as error:
            raise StackError(f"{osv.SOURCE} answers an advisory of another form: {error!r}") from error
        else:
            say(f"compared with {len(found)} advisories of {osv.SOURCE}")
            if update:
                advisories.write_advisories(stored, today, osv.SOURCE, documents)
                say(f"stored in {stored}")
            return found
    file = advisories.read_advisories(stored)
    for line in _about(file, today):
        say(line)
    return file.advisories


def _about(file: AdvisoryFile, today: date) -> list[str]:
    """Return what a person must know of a stored file."""
    age = (today - file.collected).days
    lines = [f"compared with {len(file.advisories)} stored advisories, collected on {file.collected} ({file.source})"]
    if not file.is_complete:
        lines.append("This is a selection: that a package has none of these advisories does not say that it has none.")
    if age > OLD_DAYS:
        lines.append(f"It is {age} days old. Renew it where the network is: make audit-update")
    return lines


def _print(report: Report, say: Callable[[str], None]) -> None:
    for finding in report.open:
        say(f"VULNERABLE {finding}")
    for finding in report.expired:
        say(f"EXPIRED {finding} {_accepted(finding.acceptance)}")
    for finding in report.accepted:
        say(f"accepted {finding} {_accepted(finding.acceptance)}")
    for each in report.unused:
        say(f"not needed any more: {each.id} of {each.package} in {acceptances.ACCEPTED.name}: remove it")
    if not report.passes:
        say(
            f"Lock a fixed version (make lock), or accept it in {acceptances.ACCEPTED.name} until a day, with a reason."
        )


def _accepted(acceptance: Acceptance | None) -> str:
    assert acceptance is not None
    return f"Accepted by {acceptance.by} on {acceptance.accepted_on} until {acceptance.until}: {acceptance.why}"
