"""A Chromium of our own, without a window."""

import json
import os
import shutil
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from testkit.servers.process import Server, ServerMissingError, program

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
    Its headless shell, which playwright takes by default, too: a page in a context of its own is a
    quarter of the CPU of the same in the whole browser, which is used where the shell is missing.
    """

    package: ClassVar[str] = "chromium-headless-shell"

    @property
    def url(self) -> str:
        """Where it is driven from."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def version(self) -> str:
        """As in ``HeadlessChrome/156.0.8078.108``."""
        return str(self._said()["Browser"])

    def _prepare(self) -> None:
        pass  # it makes its profile itself

    def _command(self) -> Sequence[str | Path]:
        # Its sandbox is refused to root. It shows pages of ours alone.
        as_root = ["--no-sandbox"] if os.geteuid() == 0 else []
        return [
            *self._program(),
            f"--remote-debugging-port={self.port}",
            f"--user-data-dir={self.folder / 'profile'}",
            *as_root,
            *_QUIET,
            _LOOPBACK,
            "about:blank",
        ]

    def _program(self) -> Sequence[str | Path]:
        try:
            return [program("chromium-headless-shell", self.package, Path("/usr/lib/chromium"))]
        except ServerMissingError:
            if not shutil.which("chromium"):
                raise
            return ["chromium", "--headless=new"]

    def _answers(self) -> bool:
        return bool(self._said())

    def _said(self) -> dict[str, Any]:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{self.url}/json/version", timeout=5) as reply:
            said: dict[str, Any] = json.load(reply)
        return said
