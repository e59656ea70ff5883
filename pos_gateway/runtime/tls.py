"""TLS contexts: authorities to trust, and our identity. Verification is never off."""

import os
import ssl


def context(
    *, ca_file: str | None = None, authority: str | None = None, chain: str | None = None
) -> ssl.SSLContext:
    """A context for calling a POS.

    Args:
        ca_file: PEM file of authorities to trust instead of the system's.
        authority: PEM text of the same, for a single merchant.
        chain: PEM text of our certificate, its intermediates, and its key.

    Raises:
        ssl.SSLError: a text is invalid, or the key does not match the certificate.
    """
    made = ssl.create_default_context(cafile=None if authority else ca_file, cadata=authority)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    if chain:
        # Python reads these from files only; this one is in memory, private to this process.
        memory = os.memfd_create("identity")
        try:
            os.write(memory, chain.encode())
            made.load_cert_chain(f"/proc/self/fd/{memory}", password=_no_password)
        finally:
            os.close(memory)
    return made


def _no_password() -> str:
    """Instead of a prompt on the terminal."""
    raise ssl.SSLError("the key is encrypted; decrypt it before it is imported")
