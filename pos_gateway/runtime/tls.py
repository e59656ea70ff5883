"""TLS contexts: whom to trust, and who we are. Verification is never off."""

import os
import ssl


def context(
    *, ca_file: str | None = None, authority: str | None = None, chain: str | None = None
) -> ssl.SSLContext:
    """A context for calling a POS.

    Args:
        ca_file: PEM file of authorities to trust instead of the system's.
        authority: PEM text of the same, for one merchant alone.
        chain: PEM text of our certificate, what leads to its authority, and its key.

    Raises:
        ssl.SSLError: a text is not what it should be, or the key is another certificate's.
    """
    made = ssl.create_default_context(cafile=None if authority else ca_file, cadata=authority)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    if chain:
        # Python reads these from files only; this one is in memory, and nobody else's.
        memory = os.memfd_create("identity")
        try:
            os.write(memory, chain.encode())
            made.load_cert_chain(f"/proc/self/fd/{memory}", password=_no_password)
        finally:
            os.close(memory)
    return made


def _no_password() -> str:
    """Instead of asking on the terminal."""
    raise ssl.SSLError("the key is encrypted; decrypt it before it is imported")
