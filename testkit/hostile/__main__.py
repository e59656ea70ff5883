"""All of the catalogue's peers: ``python -m testkit.hostile FOLDER``.

Prints the URLs as one JSON list, keeps the authority's certificate in the folder as ``ca.pem``, and
stays until standard input ends.
"""

import json
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

from testkit.hostile.catalogue import CATALOGUE
from testkit.hostile.certificates import Certificates
from testkit.hostile.peer import peer


def main(folder: Path) -> None:
    """Serve."""
    certificates = Certificates(folder)
    with ExitStack() as peers:
        urls = []
        for behaviour in CATALOGUE:
            seen = peers.enter_context(peer(behaviour.script, tls=certificates.context(behaviour)))
            urls.append(seen.url("", scheme="https" if behaviour.tls else "http"))
        print(json.dumps(urls), flush=True)
        sys.stdin.buffer.read()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main(Path(sys.argv[1]))
