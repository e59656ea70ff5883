"""A Chromium of our own, without a window."""

import json
import os
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from testkit.servers.process import Server, program

#: What it must not do in a test: call its maker, look at its user's settings, save power.
_QUIET = (
    "--disable-background-networking",
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-breakpad",
    "--disable-client-side-phishing-detection",
    "--disable-component-extensions-with-background-pages",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-features=AutofillServerCommunication,HttpsUpgrades,MediaRouter,OptimizationHints,Translate",
    "--disable-field-trial-config",
    "--disable-gpu",
    "--disable-hang-monitor",
    "--disable-popup-blocking",
    "--disable-quic",
    "--disable-renderer-backgrounding",
    "--disable-search-engine-choice-screen",
    "--disable-sync",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    "--metrics-recording-only",
    "--mute-audio",
    "--no-default-browser-check",
    "--no-first-run",
    "--no-proxy-server",
    "--no-service-autorun",
    "--password-store=basic",
    "--use-mock-keychain",
)
#: Every other host is unknown to it: a page that names one gets an error and no connection.
_LOOPBACK = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"


class Chromium(Server):
    """One browser with an empty profile, which playwright connects to (``connect_over_cdp``).

    A process of ours rather than playwright's, so that it dies with the tests, however they end.
    """

    package: ClassVar[str] = "chromium"

    @property
    def url(self) -> str:
        """Where it is driven from."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def version(self) -> str:
        """As in ``Chrome/156.0.8078.108``."""
        return str(self._said()["Browser"])

    def _prepare(self) -> None:
        pass  # it makes its profile itself

    def _command(self) -> Sequence[str | Path]:
        # Its sandbox is refused to root. It shows pages of ours alone.
        as_root = ["--no-sandbox"] if os.geteuid() == 0 else []
        return [
            program("chromium", self.package),
            "--headless=new",
            f"--remote-debugging-port={self.port}",
            f"--user-data-dir={self.folder / 'profile'}",
            *as_root,
            *_QUIET,
            _LOOPBACK,
            "about:blank",
        ]

    def _answers(self) -> bool:
        return bool(self._said())

    def _said(self) -> dict[str, Any]:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{self.url}/json/version", timeout=5) as reply:
            said: dict[str, Any] = json.load(reply)
        return said
