"""The image, as far as it can be proved without Docker: its steps are carried out in a folder.

What this cannot show: that the base image has what they need, and that it is pushed and pulled.
"""

import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.deploy.dockerfile import Dockerfile, carry_out

ROOT = Path(__file__).parents[2]
DOCKERFILE = Dockerfile.read(ROOT / "Dockerfile")
BUILD, LAST = DOCKERFILE.stages

#: Seconds for a worker to consume, and to stop when it has nothing under way.
PATIENCE = 60.0


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the build stage makes. Takes the package index, and 20 seconds."""
    folder = tmp_path_factory.mktemp("image")
    venv.create(folder / "python", with_pip=True)  # the base image's python and pip
    root = folder / "root"
    root.mkdir()
    carry_out(BUILD, context=ROOT, root=root, path=str(folder / "python/bin"))
    return root


@pytest.fixture
def environment(image: Path, broker_url: str, database_url: str) -> dict[str, str]:
    """What a container gets: the image's environment and the pod's, nothing of this machine's."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    of_image = {
        name: value.replace("$PATH", os.defpath).replace("/venv", f"{image}/venv")
        for name, value in LAST.environment.items()
    }
    return of_image | {
        "POS_GATEWAY_BROKER_URL": broker_url,
        "POS_GATEWAY_DATABASE_URL": database_url,
        "POS_GATEWAY_METRICS_PORT": str(port),
    }


def run(command: list[str], image: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [image / "venv/bin" / command[0], *command[1:]],
        cwd=image,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def migrate(image: Path, environment: dict[str, str]) -> None:
    job = yaml.safe_load((ROOT / "deploy/k8s/migrate/job.yaml").read_text())
    [container] = job["spec"]["template"]["spec"]["containers"]
    run(container["command"], image, environment)


def pass_the_probe(worker: subprocess.Popen[str], port: str) -> str:
    """Ask as the kubelet does, until the worker is ready; what its metrics are then."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and worker.poll() is None:
        try:
            for path in ("/readyz", "/metrics"):
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as reply:
                    answer = str(reply.read().decode())
            return answer
        except urllib.error.URLError:
            time.sleep(0.1)
    worker.kill()
    pytest.fail(f"the worker's metrics did not answer:\n{worker.communicate()[0]}")


@pytest.fixture
def worker(image: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    migrate(image, environment)
    process = subprocess.Popen(
        [image / "venv/bin" / LAST.command[0], *LAST.command[1:]],
        cwd=image,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        yield process
        process.kill()


def test_everything_that_is_copied_is_there_and_nothing_else_is_sent_to_the_build() -> None:
    assert [name for name in DOCKERFILE.copied if not (ROOT / name).exists()] == []
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    patterns = [line for line in lines if not line.startswith("#")]
    assert patterns[0] == "*"
    let_in = {line.removeprefix("!") for line in patterns if line.startswith("!")}
    assert let_in == {name.removeprefix("./") for name in DOCKERFILE.copied}


def test_both_stages_are_the_same_slim_python_that_a_build_may_replace() -> None:
    assert DOCKERFILE.arguments == {"PYTHON": "3.11-slim-bookworm"}
    bases = [stage.the("FROM").split()[0] for stage in DOCKERFILE.stages]
    assert bases == ["python:${PYTHON}"] * 2


def test_every_dependency_is_installed_by_its_hash_and_the_package_without_any() -> None:
    installs = [step.rest for step in BUILD.all("RUN") if " install " in step.rest]
    dependencies, package = installs
    assert "--require-hashes" in dependencies
    assert dependencies.endswith("-r requirements.txt")
    assert package.endswith("install --no-deps .")


def test_the_last_stage_takes_the_venv_and_runs_nothing_of_its_own() -> None:
    [copy] = LAST.all("COPY")
    assert copy.rest == "--from=build /venv /venv"
    assert LAST.all("RUN") == []


def test_the_container_is_not_root_and_kubernetes_can_see_that() -> None:
    # runAsNonRoot needs a number: a name could be anybody's.
    user = re.fullmatch(r"(\d+):(\d+)", LAST.the("USER"))
    assert user is not None
    assert all(int(number) >= 10000 for number in user.groups())


def test_the_container_is_the_worker_itself_and_is_told_to_stop_by_sigterm() -> None:
    assert LAST.command == ["celery", "-A", "pos_gateway.gcelery", "worker"]
    assert LAST.all("ENTRYPOINT") == []
    assert LAST.the("STOPSIGNAL") == "SIGTERM"
    assert LAST.environment["PYTHONUNBUFFERED"] == "1"


def test_the_venv_has_no_tools_to_build_with(image: Path) -> None:
    installed = {path.name for path in (image / "venv/bin").iterdir()}
    assert installed.isdisjoint({"pip", "pip3", "wheel", "uv"})
    assert {"celery", "pos-gateway"} <= installed


def test_the_container_s_worker_starts_answers_its_probe_and_stops_when_it_is_told(
    worker: subprocess.Popen[str], environment: dict[str, str]
) -> None:
    metrics = pass_the_probe(worker, environment["POS_GATEWAY_METRICS_PORT"])
    assert "pos_gateway_slots" in metrics
    worker.send_signal(signal.Signals[LAST.the("STOPSIGNAL")])
    output, _ = worker.communicate(timeout=PATIENCE)
    assert worker.returncode == 0, output
