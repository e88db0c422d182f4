"""Which addresses a webhook may have: properties over all addresses, and odd spellings."""

from __future__ import annotations

import threading
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.base.errors import ReplayRefused
from waybill.replay.requests.delivery.addresses import HostUnknown, find_addresses, refusal_of

IPV4 = st.ip_addresses(v=4)
# Random numbers rarely hit a small network, so most examples are drawn from those.
SPECIAL = st.sampled_from(
    [
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4"),
    ]
).flatmap(lambda network: st.ip_addresses(network=network))
GLOBAL = ["1.1.1.1", "8.8.8.8", "172.15.255.255", "172.32.0.0", "192.167.255.255", "223.255.255.255", "2606:4700::1111"]


def embedded(form: str, low: IPv4Address) -> IPv6Address:
    number = int(low)
    match form:
        case "mapped":
            return IPv6Address((0xFFFF << 32) | number)
        case "compatible":
            return IPv6Address(number)
        case "6to4":
            return IPv6Address((0x2002 << 112) | (number << 80) | 1)
        case "nat64":
            return IPv6Address((0x0064_FF9B << 96) | number)
        case "local nat64":
            return IPv6Address((0x0064_FF9B_0001 << 80) | number)
        case "teredo client":
            return IPv6Address((0x2001_0000 << 96) | (int(IPv4Address("8.8.8.8")) << 64) | (number ^ 0xFFFF_FFFF))
        case "teredo server":
            return IPv6Address((0x2001_0000 << 96) | (number << 64) | (0x0808_0808 ^ 0xFFFF_FFFF))
        case "isatap":
            return IPv6Address((0x2A00_1450 << 96) | (0x0000_5EFE << 32) | number)
    raise AssertionError(form)


FORMS = ["mapped", "compatible", "6to4", "nat64", "local nat64", "teredo client", "teredo server", "isatap"]


@given(st.one_of(IPV4, SPECIAL))
def test_nothing_that_python_calls_not_global_is_accepted(address: IPv4Address) -> None:
    if not address.is_global or address.is_multicast or address.is_reserved:
        assert refusal_of(address) is not None


@given(st.ip_addresses(v=6))
def test_only_global_unicast_of_ipv6_is_accepted(address: IPv6Address) -> None:
    if refusal_of(address) is None:
        assert address in ip_network("2000::/3") or address.ipv4_mapped or address in ip_network("64:ff9b::/96")
        assert not address.is_multicast
        assert not address.is_private or address in ip_network("64:ff9b::/96")


@given(st.sampled_from(FORMS), st.one_of(IPV4, SPECIAL))
def test_an_address_that_carries_a_refused_one_is_refused(form: str, low: IPv4Address) -> None:
    if refusal_of(low) is not None:
        assert refusal_of(embedded(form, low)) is not None


@given(IPV4.filter(lambda address: refusal_of(address) is None))
def test_gateways_to_global_addresses_are_accepted(low: IPv4Address) -> None:
    for form in ("mapped", "6to4", "nat64"):
        assert refusal_of(embedded(form, low)) is None


@given(SPECIAL)
def test_the_config_allows_a_network_and_no_other(address: IPv4Address) -> None:
    assert refusal_of(address, [ip_network(f"{address}/32")]) is None
    assert refusal_of(embedded("mapped", address), [ip_network(f"{address}/32")]) is None
    assert refusal_of(address, [ip_network("8.8.8.8/32"), ip_network("fd00::/8")]) is not None


@pytest.mark.parametrize("text", GLOBAL)
def test_global_addresses_are_accepted(text: str) -> None:
    assert refusal_of(ip_address(text)) is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("169.254.169.254", "metadata"),
        ("fd00:ec2::254", "metadata"),
        ("fd20:ce::254", "metadata"),
        ("100.100.100.200", "metadata"),
        ("168.63.129.16", "metadata"),
        ("::ffff:169.254.169.254", "metadata"),
        ("64:ff9b::a9fe:a9fe", "carries 169.254.169.254, which is a cloud's metadata"),
        ("::1", "loopback"),
        ("::", "this machine"),
        ("fe80::1%eth0", "link-local"),
        ("ff02::1", "multicast"),
        ("fec0::1", "site-local"),
        ("fdab::1", "unique local"),
        ("2001:db8::1", "documentation"),
        ("4000::1", "reserved"),
        ("255.255.255.255", "reserved"),
    ],
)
def test_the_reason_names_the_kind(text: str, kind: str) -> None:
    reason = refusal_of(ip_address(text))
    assert reason is not None
    assert kind in reason


# The system's own resolver reads these; no name server is asked.
@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "0x7f.1",
        "2130706433",
        "0177.0.0.1",
        "127.1",
        "0",
        "localhost",
        "LOCALHOST",
        "::ffff:127.0.0.1",
        "::1",
    ],
)
def test_odd_spellings_of_this_machine_are_refused(host: str) -> None:
    with pytest.raises(ReplayRefused, match=r"not allowed, since .* is (loopback|this machine)"):
        find_addresses(host, 443, [], 5.0)


def test_one_refused_address_among_others_refuses_the_host() -> None:
    with pytest.raises(ReplayRefused, match=r"rebind.example: its address 10\.0\.0\.7 is not allowed.*private"):
        find_addresses("rebind.example", 443, [], 5.0, lambda *_: ["8.8.8.8", "10.0.0.7"])


def test_addresses_keep_their_order_and_come_once() -> None:
    found = find_addresses("a.example", 443, [], 5.0, lambda *_: ["8.8.8.8", "1.1.1.1", "8.8.8.8"])
    assert [str(address) for address in found] == ["8.8.8.8", "1.1.1.1"]


def test_a_lookup_that_fails_or_hangs_is_no_refusal() -> None:
    def fail(host: str, port: int) -> list[str]:
        raise OSError("name server is away")

    release = threading.Event()

    def hang(host: str, port: int) -> list[str]:
        release.wait(30)
        return []

    with pytest.raises(HostUnknown, match=r"a\.example failed: name server is away"):
        find_addresses("a.example", 443, [], 5.0, fail)
    with pytest.raises(HostUnknown, match="took more than"):
        find_addresses("a.example", 443, [], 0.05, hang)
    release.set()
    with pytest.raises(HostUnknown, match="no address"):
        find_addresses("a.example", 443, [], 5.0, lambda *_: [])
    with pytest.raises(HostUnknown):
        find_addresses("a" * 70 + ".example", 443, [], 5.0)
