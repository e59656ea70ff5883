"""The demo, from an installed wheel and outside of a checkout."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pos_gateway.demo.cast import PARTS
from pos_gateway.demo.screen import busy
from testkit.patience import PATIENCE
from tests.planting import ROOT

#: What setuptools needs to build the wheel; building leaves files in the folder.
SOURCES = ("pyproject.toml", "README.md", "gcelery.py", "pos_gateway")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has what ``pip install`` of the wheel installs, without what it depends on."""
    sources, wheels, target = (
        tmp_path_factory.mktemp(name) for name in ("sources", "wheels", "target")
    )
    for each in SOURCES:
        (sources / each).symlink_to(ROOT / each)
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input")
    offline = ("--no-index", "--no-deps")
    build = ("wheel", *offline, "--no-build-isolation", "--wheel-dir", str(wheels), str(sources))
    subprocess.run([*pip, *build], check=True)
    [wheel] = wheels.iterdir()
    install = ("install", *offline, "--no-compile", "--target", str(target), str(wheel))
    subprocess.run([*pip, *install], check=True)
    return target


def run(
    program: str, *arguments: str, installed: Path, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run it in a folder of its own with the installed wheel."""
    folder = installed.parent / "elsewhere"
    folder.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=folder,
        env=os.environ | environment | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


#: What the console script does, and that no test's package can be imported.
COMMAND = """
import importlib.util
for each in ("testkit", "loadtests", "tests"):
    assert importlib.util.find_spec(each) is None, each
from pos_gateway.cli import main
main()
"""


#: As in a terminal that is set up for a real gateway, whose broker and database cannot be reached from here.
REAL = {
    "POS_GATEWAY_BROKER_URL": "amqp://127.0.0.1:1//",
    "POS_GATEWAY_DATABASE_URL": "postgresql://127.0.0.1:1/orders",
    "POS_GATEWAY_REDIS_URL": "redis://127.0.0.1:1",
    "POS_GATEWAY_CANARY_PERCENT": "100",
    "POS_GATEWAY_FAILPOINTS": "outcome.before=kill",
    "POS_GATEWAY_SECRET_KEY": "no key",
    "POS_GATEWAY_OF_A_LATER_VERSION": "1",
    "CELERY_BROKER_URL": "amqp://127.0.0.1:1//",
    "BROKER_URL": "amqp://127.0.0.1:1//",
    "CELERY_CONFIG_MODULE": "no_module",
}


def test_the_demo_accounts_for_every_order_and_uses_nothing_that_the_environment_names(
    installed: Path,
) -> None:
    done = run(COMMAND, "demo", "--quick", installed=installed, **REAL)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "orders are accounted for, none was made twice" in done.stdout
    assert done.stdout.rstrip().endswith("operations page, live: pos-gateway demo --serve")
    assert "Traceback" not in done.stderr
    for part in PARTS:
        assert f"{part.merchants} {part.name}" in done.stdout


def test_a_busy_machine_is_said_to_have_made_the_times_longer() -> None:
    assert busy(2.9, 2) == ""
    assert "a load of 7.0 on 2 cores" in busy(7.0, 2)


def test_it_loads_nothing_that_only_tests_and_load_tests_have(installed: Path) -> None:
    done = run(
        "import sys, pos_gateway.demo.__main__, pos_gateway.demo.serve, pos_gateway.demo.server\n"
        "print(pos_gateway.__file__, *sys.modules)",
        installed=installed,
    )
    assert done.returncode == 0, done.stderr
    file, *modules = done.stdout.split()
    assert Path(file).parent.parent == installed
    loaded = {each.partition(".")[0] for each in modules}
    assert {"gevent", "fastapi"} <= loaded
    assert not loaded & {"locust", "pytest", "matplotlib", "psutil", "trustme", "testkit"}
