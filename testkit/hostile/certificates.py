"""Who scripted peers say they are, over TLS."""

import ssl
from pathlib import Path

import trustme

from testkit.hostile.catalogue import Behaviour


class Certificates:
    """An authority that is trusted, one that is not, and what they have issued.

    Args:
        folder: where the file of the trusted one is to be.
    """

    def __init__(self, folder: Path) -> None:
        self._known, self._unknown = trustme.CA(), trustme.CA()
        self.file = str(folder / "ca.pem")
        self._known.cert_pem.write_to_path(self.file)

    def context(self, behaviour: Behaviour) -> ssl.SSLContext | None:
        """What the peer serves TLS with; None: it does not."""
        if behaviour.tls in ("", "none"):
            return None
        authority = self._unknown if behaviour.tls == "self-signed" else self._known
        host = "pos.example.com" if behaviour.tls == "other-host" else "127.0.0.1"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(host).configure_cert(context)
        if behaviour.context is not None:
            behaviour.context(context)
        return context
