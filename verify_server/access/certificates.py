"""The common names in a client's certificate, all of them and as they are.

gRPC itself tells the first one alone, and that only up to a NUL: a certificate for "kitchen" and "hall", or for
"kitchen" NUL ".example", would be the kitchen's.
"""

from functools import lru_cache

from cryptography import x509
from cryptography.x509.oid import NameOID


@lru_cache(1024)  # certificates; every call of a device brings its own one
def common_names(certificate: bytes) -> tuple[bytes, ...]:
    """The common names (UTF-8) in a PEM certificate, in its order; none for one that cannot be read."""
    try:
        subject = x509.load_pem_x509_certificate(certificate).subject
    except ValueError:
        return ()
    values = [attribute.value for attribute in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    return tuple(value.encode() if isinstance(value, str) else value for value in values)
