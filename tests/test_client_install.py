"""What a backend installs: kombu, requests and pydantic, and with them it submits orders."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import distribution, packages_distributions

import pytest
from packaging.requirements import Requirement

from testkit.patience import PATIENCE
from tests.planting import ROOT
from tests.server.scripted import Scripted

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def installed_with_the_client() -> set[str]:
    """The distributions that ``pip install pos-gateway`` installs."""
    found: set[str] = set()
    asked = [Requirement(each) for each in PROJECT["dependencies"]]
    while asked:
        requirement = asked.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        if (name := normal(requirement.name)) not in found:
            found.add(name)
            asked += [Requirement(each) for each in distribution(name).requires or ()]
    return found


def packages_of_others() -> set[str]:
    """The top-level packages of all that is installed beside."""
    base = {*installed_with_the_client(), "pos-gateway"}
    return {
        package
        for package, names in packages_distributions().items()
        if not {normal(each) for each in names} & base
    }


#: Refuses these packages, as if they were not installed.
BASE_ONLY = """
import sys
import importlib.abc

class BaseOnly(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {refused!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, BaseOnly())
"""


def run(program: str, *, also: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
    """Run the program with the base install alone."""
    program = BASE_ONLY.format(refused=packages_of_others() - {*also}) + program
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT)


def test_the_base_install_is_small() -> None:
    names = {normal(Requirement(each).name) for each in PROJECT["dependencies"]}
    assert names == {"kombu", "amqp", "pydantic", "requests"}
    assert installed_with_the_client() <= names | {
        *("vine", "tzdata", "urllib3", "idna", "certifi", "charset-normalizer"),
        *("annotated-types", "pydantic-core", "typing-extensions", "typing-inspection"),
    }
    assert {"celery", "gevent", "click", "structlog"} <= packages_of_others()


def test_a_worker_without_celery_says_what_to_install() -> None:
    """The backend has click for something else."""
    done = run(
        "sys.argv = ['pos-gateway', 'worker']\nfrom pos_gateway.cli import main\nmain()",
        also=("click",),
    )
    assert done.returncode == 1
    assert "celery is not installed" in done.stderr
    assert "pip install 'pos-gateway[worker]'" in done.stderr


def test_all_that_the_client_loads_is_in_the_base_install() -> None:
    done = run(
        "before = {*sys.modules}; import pos_gateway.client, pos_gateway.client.outbox;"
        "import pos_gateway.client.events, pos_gateway.client.aio;"
        "print(*sys.modules.keys() - before)"
    )
    assert done.returncode == 0, done.stderr
    loaded = {*done.stdout.split()}
    assert "kombu" in loaded
    assert not {each.partition(".")[0] for each in loaded} & packages_of_others()
    assert not [each for each in loaded if each.endswith("_internals")]


@pytest.mark.parametrize("traced", [False, True], ids=["plain", "traced"])
def test_the_client_submits_an_order_with_the_base_install(broker_url: str, traced: bool) -> None:
    """Traced: within a program that uses OpenTelemetry, which brings its interface itself."""
    begin = "import opentelemetry.trace\n" if traced else ""
    done = run(
        f"{begin}from pos_gateway.client import OrderClient\n"
        "from tests.orders import an_order\n"
        f"with OrderClient({broker_url!r}) as client:\n"
        "    client.submit(an_order('o1'))\n"
        "    client.cancel('o1', 'm1')\n"
        "    print(client.split.percent)\n",
        also=("opentelemetry",) if traced else (),
    )
    assert (done.returncode, done.stdout) == (0, "0.0\n"), done.stderr


def test_all_that_the_client_over_http_loads_is_in_the_base_install() -> None:
    done = run(
        "before = {*sys.modules}; import pos_gateway.http_client;"
        "print(*sys.modules.keys() - before)"
    )
    assert done.returncode == 0, done.stderr
    loaded = {each.partition(".")[0] for each in done.stdout.split()}
    assert "requests" in loaded
    assert not loaded & {"kombu", "amqp", *packages_of_others()}
    internals = [each for each in done.stdout.split() if each.endswith("_internals")]
    assert internals == ["pos_gateway.transport.urllib3_internals"]


@pytest.mark.parametrize("traced", [False, True], ids=["plain", "traced"])
def test_the_client_over_http_submits_an_order_with_the_base_install(traced: bool) -> None:
    taken = b'{"order_id":"o1","merchant_id":"fast-1","state":"submitted"}'
    server = Scripted((202, {}, taken))
    begin = "import opentelemetry.trace\n" if traced else ""
    try:
        done = run(
            f"{begin}from pos_gateway.http_client import HttpOrderClient\n"
            "from tests.orders import an_order\n"
            f"with HttpOrderClient({server.url!r}, 'pgw_x') as client:\n"
            "    print(client.submit(an_order('o1')))\n"
            "    client.cancel('o1', 'fast-1')\n",
            also=("opentelemetry",) if traced else (),
        )
    finally:
        server.close()
    assert (done.returncode, done.stdout) == (0, "submitted\n"), done.stderr
    assert [each.path for each in server.asked] == [
        "/v1/orders",
        "/v1/merchants/fast-1/orders/o1/cancel",
    ]


@pytest.mark.parametrize("missing", [(), ("click",)], ids=["all", "what a command imports later"])
def test_the_command_says_what_to_install(missing: tuple[str, ...]) -> None:
    """Also where another package has brought click."""
    done = run(
        "sys.argv = ['pos-gateway', 'orders', 'list']\nfrom pos_gateway.cli import main\nmain()",
        also=missing,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    [sentence] = done.stderr.splitlines()
    assert "pip install 'pos-gateway[worker]'" in sentence
