"""Certificates of an authority made for the tests, and of one that nobody trusts."""

import trustme

from opensled.core.files import Identity

HERE = "127.0.0.1"
AUTHORITY, STRANGER = trustme.CA(), trustme.CA()


def issued(authority=AUTHORITY, *names, **options):
    """A certificate for `names` (none: a device's), good for clients and servers alike."""
    leaf = authority.issue_cert(*(names or ("device.example",)), **options)
    return Identity(leaf.cert_chain_pems[0].bytes(), leaf.private_key_pem.bytes())


def written(folder):
    """The authority's own certificate in a file."""
    AUTHORITY.cert_pem.write_to_path(folder / "ca.pem")
    return folder / "ca.pem"
