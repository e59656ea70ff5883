"""Whether gevent patches a worker before anything else is imported: without that nothing is green.

A subprocess starts as a worker does, up to connecting, and prints the result.
"""

import subprocess
import sys
from collections.abc import Iterator

from pos_gateway.cli.doctor.finding import Finding, fail, ok
from pos_gateway.cli.worker import command
from pos_gateway.settings import Settings

_PATIENCE = 60.0

#: What ``celery/__main__.py`` and ``-A`` do, in order; then the check. Late patching makes gevent
#: warn, and TLS recurse without end.
_PROBE = """
import sys, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import celery
    celery.maybe_patch_concurrency()
    import pos_gateway.gcelery
from gevent import monkey
late = [str(w.message) for w in caught if issubclass(w.category, monkey.MonkeyPatchWarning)]
names = ("socket", "ssl", "threading", "time", "select", "queue", "subprocess")
problems = [f"{name} is not patched" for name in names if not monkey.is_module_patched(name)]
import gevent.ssl, urllib3.util.ssl_
if urllib3.util.ssl_.SSLContext is not gevent.ssl.SSLContext:
    problems.append("TLS would block every green thread")
try:
    urllib3.util.ssl_.create_urllib3_context()
except RecursionError:
    problems.append("TLS recurses without end")
print("; ".join(problems + late) or "patched")
"""


def check_patching(_: Settings) -> Iterator[Finding]:
    """Runs a worker's first steps in a subprocess: a second of CPU, no connection."""
    advice = "something imports urllib3 or requests first: look for .pth files and sitecustomize"
    try:
        done = subprocess.run(  # noqa: S603  (this interpreter, our own arguments)
            [sys.executable, "-P", "-c", _PROBE, *command(())[4:]],
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        yield fail(f"green threads: cannot try a worker: {error}", advice)
        return
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        yield fail(
            f"green threads: a worker does not start: {said}", "pos-gateway worker says more"
        )
    elif done.stdout.strip() != "patched":
        yield fail(f"green threads: {done.stdout.strip()}", advice)
    else:
        yield ok("green threads: gevent patches a worker before anything else")
