"""Which network addresses may be connected to. Asked for every connection, after the name was resolved: what
a name means can change between two of them."""

from __future__ import annotations

import ipaddress

_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def may_connect(address: str, allow_loopback: bool) -> bool:
    """Whether an address, as the system gives it, is on the public Internet, or on loopback where that is
    allowed: nothing private, link-local (metadata services) or special, in whatever form it is written."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo[1] if found.teredo else None)
        if inner is None and found in _NAT64:
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        found = inner or found
    if found.is_loopback:
        return allow_loopback
    special = found.is_multicast or found.is_reserved or getattr(found, "is_site_local", False)
    return found.is_global and not special
