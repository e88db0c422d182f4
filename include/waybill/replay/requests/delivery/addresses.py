"""The addresses that are allowed for a webhook, and the lookup of a host's addresses.

A requester chooses the URL, and the worker that sends to it is inside the network. So a URL must not reach servers that
only the network protects: an address is refused unless it is global unicast, or in a network that the config allows.

Only addresses are checked, never the spelling of a host: the system's resolver turns `0x7f.1`, `2130706433` and a name
that an attacker controls into addresses, and those are compared. An IPv6 address that carries an IPv4 address to which
a gateway would forward (6to4, NAT64, ISATAP) is checked for both. A mapped one is the IPv4 address. Teredo is refused.

The caller connects to an address that `find_addresses` returned, and does not look the name up again, so a name that
changes in between (DNS rebinding) cannot bypass the check.
"""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from waybill.base.errors import ReplayRefused

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Lookup = Callable[[str, int], Sequence[str]]
"""Returns the addresses of a host; raises `OSError` if there are none."""

# The first network that holds an address names its kind. Python's own `is_global` changes with its version, and does
# not include metadata services.
_KINDS: tuple[tuple[Network, str], ...] = tuple(
    (ip_network(network), kind)
    for network, kind in (
        ("169.254.169.254/32", "a cloud's metadata service"),
        ("169.254.170.2/32", "a cloud's metadata service"),
        ("100.100.100.200/32", "a cloud's metadata service"),
        ("168.63.129.16/32", "a cloud's metadata service"),
        ("192.0.0.192/32", "a cloud's metadata service"),
        ("fd00:ec2::/32", "a cloud's metadata service"),
        ("fd20:ce::254/128", "a cloud's metadata service"),
        ("0.0.0.0/8", "this machine"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "private (carrier-grade NAT)"),
        ("127.0.0.0/8", "loopback"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "reserved for documentation"),
        ("192.31.196.0/24", "reserved"),
        ("192.52.193.0/24", "reserved"),
        ("192.88.99.0/24", "reserved (6to4 relays)"),
        ("192.168.0.0/16", "private"),
        ("192.175.48.0/24", "reserved"),
        ("198.18.0.0/15", "reserved for benchmarks"),
        ("198.51.100.0/24", "reserved for documentation"),
        ("203.0.113.0/24", "reserved for documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
        ("::/128", "this machine"),
        ("::1/128", "loopback"),
        ("fc00::/7", "unique local"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "site-local"),
        ("ff00::/8", "multicast"),
        ("2001::/23", "reserved"),
        ("2001:db8::/32", "reserved for documentation"),
        ("3fff::/20", "reserved for documentation"),
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")
_GLOBAL_IPV6 = IPv6Network("2000::/3")


class HostUnknown(OSError):
    """The name lookup failed or took too long. It may succeed later."""


def refusal_of(address: Address, allowed: Iterable[Network] = ()) -> str | None:
    """Return why this address is not allowed for a webhook; None if it is allowed.

    `allowed`: networks of the config.
    """
    networks = tuple(allowed)
    shown = str(address)
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        address = IPv6Address(int(address))
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        # The operating system connects to the IPv4 address.
        address = address.ipv4_mapped
    if _is_in(address, networks):
        return None
    kind = _kind(address)
    if kind is not None:
        return f"{shown} is {kind}"
    for embedded in _embedded(address):
        if not _is_in(embedded, networks) and (kind := _kind(embedded)) is not None:
            return f"{shown} carries {embedded}, which is {kind}"
    return None


def find_addresses(
    host: str, port: int, allowed: Iterable[Network], timeout_seconds: float, lookup: Lookup | None = None
) -> tuple[Address, ...]:
    """Return the addresses of a host in the resolver's order; all of them are allowed.

    Raises `ReplayRefused` if one of them is refused: a name with an allowed and a refused address is probably an
    attack. Raises `HostUnknown` if the lookup finds none within `timeout_seconds`.
    """
    networks = tuple(allowed)
    texts = _within(timeout_seconds, lambda: (lookup or _system_lookup)(host, port), host)
    found = tuple(dict.fromkeys(ip_address(text) for text in texts))
    if not found:
        raise HostUnknown(f"{host} has no address")
    for address in found:
        reason = refusal_of(address, networks)
        if reason is not None:
            where = host if _is_spelled(host, address) else f"{host}: its address {address}"
            raise ReplayRefused(
                f"{where} is not allowed, since {reason}; an operator can allow it (replay.webhooks.allowed_networks)",
                "target.url",
            )
    return found


def _is_spelled(host: str, address: Address) -> bool:
    return host.strip("[]") == str(address)


def _is_in(address: Address, networks: Iterable[Network]) -> bool:
    # An IPv4 address is never in an IPv6 network, nor the reverse.
    return any(address in network for network in networks)


def _kind(address: Address) -> str | None:
    for network, kind in _KINDS:
        if address in network:
            return kind
    if isinstance(address, IPv4Address) or address in _GLOBAL_IPV6 or address in _NAT64:
        return None
    return "reserved"


def _embedded(address: Address) -> Iterator[IPv4Address]:
    """Yield the IPv4 addresses that an IPv6 address carries."""
    if not isinstance(address, IPv6Address):
        return
    low = IPv4Address(int(address) & 0xFFFF_FFFF)
    if address in _NAT64:
        yield low
    if address.sixtofour is not None:
        yield address.sixtofour
    # ISATAP (RFC 5214): the interface identifier is 0000:5efe or 0200:5efe, then the IPv4 address.
    if (int(address) >> 32) & 0xFDFF_FFFF == 0x0000_5EFE:
        yield low


def _system_lookup(host: str, port: int) -> Sequence[str]:
    return [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def _within(timeout_seconds: float, work: Callable[[], Sequence[str]], host: str) -> Sequence[str]:
    """Run `work` in a thread, which may be abandoned, since `getaddrinfo` has no timeout. Return the result."""
    answers: queue.SimpleQueue[Sequence[str] | Exception] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put(work())
        except Exception as error:  # raised again in the caller's thread
            answers.put(error)

    threading.Thread(target=run, name="webhook-lookup", daemon=True).start()
    try:
        answer = answers.get(timeout=max(timeout_seconds, 0.001))
    except queue.Empty:
        raise HostUnknown(f"the lookup of {host} took more than {timeout_seconds:.0f} s") from None
    # UnicodeError: a label that is empty or too long for DNS.
    if isinstance(answer, OSError | UnicodeError):
        raise HostUnknown(f"the lookup of {host} failed: {answer}") from None
    if isinstance(answer, Exception):
        raise answer
    return answer
