"""``pos-gateway adapters``: from nothing to a package whose tests pass, and that a worker takes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pos_gateway.adapters.registry import BUILT_IN
from pos_gateway.cli.root import root
from testkit.patience import PATIENCE
from tests.planting import ROOT


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(root, ["adapters", *map(str, arguments)], prog_name="pos-gateway")


def run(*arguments: object, folder: Path, **environment: object) -> str:
    """The output of a Python module, which ends with 0."""
    done = subprocess.run(
        [sys.executable, "-m", *map(str, arguments)],
        cwd=folder,
        env={**os.environ, **{name: str(value) for name, value in environment.items()}},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_new_package_passes_its_tests_and_a_worker_takes_its_adapter(tmp_path: Path) -> None:
    assert invoke("new", "corner_shop", "--folder", tmp_path).exit_code == 0
    package, site = tmp_path / "corner_shop", tmp_path / "site"
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--offline", "--quiet")
    python = ("--python", sys.executable)
    run("uv", "pip", "install", *offline, *python, "--target", site, package, folder=tmp_path)
    path = os.pathsep.join(map(str, (site, ROOT)))
    # Other packages' plugins here take longer to import than the suite takes.
    alone = {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    passed = run("pytest", "-q", "-p", "no:cacheprovider", folder=package, **alone)
    assert " passed" in passed
    listed = run("pos_gateway", "adapters", "list", folder=tmp_path, PYTHONPATH=path)
    assert "corner_shop\tqueryable\tcreate\n" in listed
    for name in ("skeleton", "Skeleton"):
        assert not [each for each in package.rglob("*.py") if name in each.read_text()]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    mine = tmp_path / "acme" / "acme_pos" / "adapter.py"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    refused = invoke("new", "acme", "--folder", tmp_path)
    assert refused.exit_code == 1
    assert f"{mine} is there already; nothing was written" in refused.output
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == [mine]


@pytest.mark.parametrize("name", ["Acme", "7eleven", "my-pos", "../acme", "", "x" * 41, "rest"])
def test_a_bad_name_is_refused_and_said(tmp_path: Path, name: str) -> None:
    refused = invoke("new", name, "--folder", tmp_path)
    assert refused.exit_code == 2
    assert f"Invalid value for 'NAME': {name!r}" in refused.output
    assert list(tmp_path.iterdir()) == []


def test_the_adapters_here_are_listed() -> None:
    listed = invoke("list")
    assert listed.exit_code == 0
    for adapter in BUILT_IN:
        assert f"{adapter.name}\t{adapter.guarantee}\t" in listed.output


def test_a_package_that_is_broken_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    about = tmp_path / "broken-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[pos_gateway.adapters]\nfax = nothing.here:Fax\n")
    monkeypatch.syspath_prepend(tmp_path)
    listed = invoke("list")
    assert listed.exit_code == 1
    assert "fax (nothing.here:Fax) cannot be used: ModuleNotFoundError" in listed.output
    assert "rest\tkeyed\tcreate\n" in listed.output
