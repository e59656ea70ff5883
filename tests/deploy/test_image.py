"""The image, as far as it can be tested without Docker: its steps are executed in a folder.

Its commands, and the worker itself, run as user 10001 with a read-only file system. Not tested:
that the base image has what they need, and that the image is pushed and pulled.
"""

import email
import json
import os
import re
import shutil
import signal
import subprocess
import time
import tomllib
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pip
import pytest
import uv
import yaml

from testkit.patience import PATIENCE
from testkit.servers.process import free_port
from tests.deploy.dockerfile import Dockerfile, Stage, caged, carry_out
from tests.deploy.kustomize import of_kind, render
from tests.deploy.policies import pod_of

ROOT = Path(__file__).parents[2]
DOCKERFILE = Dockerfile.read(ROOT / "Dockerfile")
BUILD, LAST = DOCKERFILE.stage("build"), DOCKERFILE.stages[-1]

#: Half a minute on an idle machine; a package index may take its time.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def on_disk() -> Iterator[Path]:
    """A folder that a cage can make read-only, which leaves /dev/shm as it is."""
    with TemporaryDirectory(dir="/var/tmp", prefix="image-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="module")
def image(on_disk: Path) -> Path:
    """A folder with the result of the build stage. Needs uv's cache, or the package index."""
    root = on_disk / "image"
    root.mkdir()
    venv.create(root / "python")  # the base image's
    lend_installers(root / "python")
    make(BUILD, root)
    return root


def lend_installers(python: Path) -> None:
    """Our pip and uv, which are the pinned ones: to unpack other ones takes many seconds of CPU."""
    [packages] = python.glob("lib/python*/site-packages")
    ours = Path(pip.__file__).parents[1]
    for name in ("pip", "uv"):
        for each in (ours / name, *ours.glob(f"{name}-*.dist-info")):
            shutil.copytree(each, packages / each.name)
    (python / "bin/uv").symlink_to(uv.find_uv_bin())
    script = python / "bin/pip"
    script.write_text(f"#!{python}/bin/python\nfrom pip._internal.cli.main import main\n\nmain()\n")
    script.chmod(0o755)


def make(stage: Stage, root: Path, *, folder: str = "/") -> None:
    """Execute a stage in the folder."""
    carry_out(stage, context=ROOT, root=root, path=str(root / "python/bin"), folder=folder)


@pytest.fixture
def environment(image: Path, broker_url: str, postgres_url: str) -> dict[str, str]:
    """A container's environment: the image's and the pod's, nothing of this machine's."""
    of_image = {
        name: value.replace("$PATH", os.defpath).replace("/venv", f"{image}/venv")
        for name, value in LAST.environment.items()
    }
    return of_image | {
        "POS_GATEWAY_BROKER_URL": broker_url,
        "POS_GATEWAY_DATABASE_URL": postgres_url.replace("+psycopg", ""),
        "POS_GATEWAY_METRICS_PORT": str(free_port()),
    }


def run(command: list[str], image: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        caged([image / "venv/bin" / command[0], *command[1:]]),
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
    """Probe as the kubelet does, until the worker is ready; returns its metrics."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and worker.poll() is None:
        try:
            for path in ("/readyz", "/metrics"):
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as reply:
                    answer = str(reply.read().decode())
            return answer
        except OSError:  # a URLError is one; so is a connection that is lost during the reply
            time.sleep(0.1)
    worker.kill()
    pytest.fail(f"the worker's metrics did not answer:\n{worker.communicate()[0]}")


@pytest.fixture
def worker(image: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    migrate(image, environment)
    said = pod_of(of_kind("Deployment", render("base"))["pos-gateway"])["securityContext"]
    whose = {"user": said["runAsUser"], "group": said.get("runAsGroup", 0)}  # the kubelet's way
    process = subprocess.Popen(
        caged([image / "venv/bin" / LAST.command[0], *LAST.command[1:]], **whose),
        cwd=image,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        yield process
        process.kill()


def test_the_cage_prevents_writes_outside_its_folders(on_disk: Path) -> None:
    inside, outside = on_disk / "inside", on_disk / "outside"
    inside.mkdir()
    script = f"id -u; touch {inside}/new; touch {outside} {ROOT}/new /tmp/new && exit 3"
    done = subprocess.run(caged(["sh", "-c", script], writable=[inside]), capture_output=True)
    assert done.stdout == b"10001\n"
    assert done.stderr.count(b"Read-only file system") == 3
    assert (inside / "new").exists()
    assert not outside.exists()


def test_the_build_context_has_exactly_the_copied_files() -> None:
    copied = {name.removeprefix("./") for name in DOCKERFILE.copied}
    assert [name for name in copied if not (ROOT / name).exists()] == []
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    patterns = [line for line in lines if not line.startswith("#")]
    assert patterns[0] == "*"
    let_in = {line.removeprefix("!") for line in patterns if line.startswith("!")}
    # What is in a folder that is let in comes with it.
    assert let_in == {each for each in copied if copied.isdisjoint(map(str, Path(each).parents))}


def test_every_stage_has_the_same_slim_python_pinned_by_a_digest_if_one_is_given() -> None:
    assert DOCKERFILE.arguments == {"PYTHON": "3.11-slim-bookworm", "PYTHON_DIGEST": ""}
    bases = {stage.base for stage in DOCKERFILE.stages} - {"scratch"}
    assert bases - {stage.name for stage in DOCKERFILE.stages} == {
        "python:${PYTHON}${PYTHON_DIGEST:+@$PYTHON_DIGEST}"
    }


@pytest.mark.parametrize("stage", DOCKERFILE.stages, ids=lambda stage: stage.name or "last")
def test_every_package_but_ours_is_installed_by_hash(stage: Stage) -> None:
    for step in stage.all("RUN"):
        if re.search(r" (install|wheel) ", step.rest):
            fetched = "--require-hashes --only-binary=:all: -r " in step.rest
            # Our package, with its build backend installed already: pip may use no index.
            here = {"--no-index", "--no-deps"} <= set(step.words)
            only_asked = {"--no-index", "--dry-run"} <= set(step.words)
            assert fetched or here or only_asked
        if " wheel " in step.rest:
            assert "--no-build-isolation" in step.words


def test_the_build_backend_is_pinned_to_one_release() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    [backend] = project["build-system"]["requires"]
    assert re.fullmatch(r"setuptools==[\d.]+", backend)
    for pins in ("deploy/image/build.txt", "requirements-dev.txt"):
        assert re.search(rf"(?m)^{re.escape(backend)} ", (ROOT / pins).read_text()), pins


def test_the_last_stage_copies_the_venv_and_runs_nothing() -> None:
    [copy] = LAST.all("COPY")
    assert copy.rest == "--from=build /venv /venv"
    assert LAST.all("RUN") == []


def test_the_image_has_its_labels() -> None:
    said = re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]+)"', LAST.the("LABEL"))
    assert dict(said).keys() == {"title", "description", "version", "revision"}
    arguments = {each.rest for each in LAST.all("ARG")}
    assert {value.removeprefix("$") for _, value in said if value.startswith("$")} == arguments
    makefile = (ROOT / "Makefile").read_text()
    for argument in (*arguments, "PYTHON_DIGEST"):
        assert f"--build-arg {argument}=" in makefile


@pytest.mark.parametrize("stage", [LAST, DOCKERFILE.stage("merchants")], ids=["last", "merchants"])
def test_a_container_is_not_root_and_kubernetes_can_see_that(stage: Stage) -> None:
    # runAsNonRoot needs a numeric user: a name could be root's.
    user = re.fullmatch(r"(\d+):(\d+)", stage.the("USER"))
    assert user is not None
    assert all(int(number) >= 10000 for number in user.groups())
    assert stage.command[0] not in ("sh", "/bin/sh")


def test_the_containers_process_is_the_worker_and_stops_on_sigterm() -> None:
    assert LAST.command == ["celery", "-A", "pos_gateway.gcelery", "worker"]
    assert LAST.all("ENTRYPOINT") == []
    assert LAST.the("STOPSIGNAL") == "SIGTERM"
    assert LAST.environment["PYTHONUNBUFFERED"] == "1"
    assert BUILD.environment["UV_COMPILE_BYTECODE"] == "1", (
        "else each start compiles what it imports"
    )
    assert LAST.environment["POS_GATEWAY_METRICS_HOST"] == "0.0.0.0", "else it is asked in vain"


def test_the_venv_has_no_build_tools(image: Path) -> None:
    installed = {path.name for path in (image / "venv/bin").iterdir()}
    assert installed.isdisjoint({"pip", "pip3", "wheel", "uv"})
    assert {"celery", "pos-gateway"} <= installed


def is_healthy(image: Path, environment: dict[str, str]) -> bool:
    """The result of the HEALTHCHECK."""
    command = json.loads(LAST.the("HEALTHCHECK").partition(" CMD ")[2])
    check = subprocess.run(
        [image / "venv/bin" / command[0], *command[1:]], env=environment, capture_output=True
    )
    return check.returncode == 0


def test_the_containers_worker_starts_answers_its_probes_and_stops_on_sigterm(
    worker: subprocess.Popen[str], image: Path, environment: dict[str, str]
) -> None:
    assert not is_healthy(image, {**environment, "POS_GATEWAY_METRICS_PORT": str(free_port())})
    metrics = pass_the_probe(worker, environment["POS_GATEWAY_METRICS_PORT"])
    assert "pos_gateway_slots" in metrics
    assert is_healthy(image, environment)
    assert is_healthy(image, {**environment, "POS_GATEWAY_METRICS_PORT": "0"})
    # The started process is the worker: no shell is in between.
    assert b"pos_gateway.gcelery" in Path(f"/proc/{worker.pid}/cmdline").read_bytes()
    assert "Uid:\t10001" in in_its_namespace(worker.pid)
    assert "Gid:\t10001" in in_its_namespace(worker.pid)
    worker.send_signal(signal.Signals[LAST.the("STOPSIGNAL")])
    output, _ = worker.communicate(timeout=PATIENCE)
    assert worker.returncode == 0, output


def in_its_namespace(pid: int) -> str:
    """A process's PID in its namespace."""
    done = subprocess.run(
        [
            *("nsenter", "--target", str(pid), "--user", "--preserve-credentials"),
            *("grep", "-E", "Uid|Gid", f"/proc/{pid}/status"),
        ],
        capture_output=True,
        text=True,
    )
    return done.stdout


def test_the_simulated_merchants_start_with_their_requirements(
    image: Path,
) -> None:
    stage = DOCKERFILE.stage("merchants")
    shutil.rmtree(image / "src/pos_gateway")  # the build stage's: this one has its own part alone
    make(stage, image)
    command = [image / "python/bin" / stage.command[0], *stage.command[1:-1], "0"]
    with subprocess.Popen(caged(command), cwd=image / "src", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        port = json.loads(process.stdout.readline())["port"]
        asked = f"http://127.0.0.1:{port}/m/fast-1/orders/none"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(asked, timeout=PATIENCE)
        process.terminate()
    assert process.returncode == 0


def without_validation(stage: Stage) -> Stage:
    program = "cyclonedx-py environment "
    steps = [
        replace(each, rest=each.rest.replace(program, f"{program}--no-validate "))
        for each in stage.instructions
    ]
    assert steps != list(stage.instructions)
    return Stage(tuple(steps))


def test_the_bill_of_materials_has_every_installed_package(image: Path) -> None:
    inventory = DOCKERFILE.stage("inventory")
    assert inventory.base == BUILD.name
    # Its program's own check of the bill takes seven seconds of CPU, and reads nothing of ours.
    make(without_validation(inventory), image, folder=BUILD.the("WORKDIR"))
    [copy] = DOCKERFILE.stage("sbom").all("COPY")
    assert copy.rest == f"--from={inventory.name} /sbom.json /"
    bill = json.loads((image / "sbom.json").read_text())
    assert bill["metadata"]["component"]["name"] == "pos-gateway"
    listed = {f"{each['name']}=={each['version']}" for each in bill["components"]}
    found = (image / "venv").glob("lib/python*/site-packages/*.dist-info/METADATA")
    metadata = [email.message_from_string(each.read_text()) for each in found]
    assert {f"{each['Name']}=={each['Version']}" for each in metadata} <= {
        *listed,
        f"pos-gateway=={bill['metadata']['component']['version']}",
    }
    assert len(listed) > 20
