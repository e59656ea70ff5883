"""A parser and executor, without Docker, for the part of a Dockerfile that this project uses."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class Instruction:
    """One instruction: its keyword in capitals, and the rest of its line."""

    keyword: str
    rest: str

    @property
    def words(self) -> list[str]:
        return self.rest.split()


@dataclass(frozen=True)
class Stage:
    """A FROM and its instructions."""

    instructions: tuple[Instruction, ...]

    @property
    def base(self) -> str:
        """The base image."""
        return self.the("FROM").split()[0]

    @property
    def name(self) -> str:
        """The stage's name; the last one needs none."""
        return self.the("FROM").partition(" AS ")[2]

    def all(self, keyword: str) -> list[Instruction]:
        return [each for each in self.instructions if each.keyword == keyword]

    def the(self, keyword: str) -> str:
        """The rest of the only such instruction."""
        [only] = self.all(keyword)
        return only.rest

    @property
    def environment(self) -> dict[str, str]:
        pairs = [word.partition("=") for env in self.all("ENV") for word in env.words]
        return {name: value for name, _, value in pairs}

    @property
    def command(self) -> list[str]:
        """CMD's words. Raises ValueError if it is in shell form."""
        return [str(word) for word in json.loads(self.the("CMD"))]


@dataclass(frozen=True)
class Dockerfile:
    """The whole file: the ARGs before the first FROM, and the stages."""

    arguments: dict[str, str]
    stages: tuple[Stage, ...]

    @classmethod
    def read(cls, path: Path) -> Self:
        arguments: dict[str, str] = {}
        stages: list[list[Instruction]] = []
        for instruction in _instructions(path.read_text()):
            if instruction.keyword == "FROM":
                stages.append([])
            if stages:
                stages[-1].append(instruction)
            else:
                name, _, default = instruction.rest.partition("=")
                arguments[name] = default
        return cls(arguments, tuple(Stage(tuple(stage)) for stage in stages))

    def stage(self, name: str) -> Stage:
        """The stage of this name."""
        [found] = [stage for stage in self.stages if stage.name == name]
        return found

    @property
    def copied(self) -> list[str]:
        """What is copied from the repository."""
        copies = [each for stage in self.stages for each in stage.all("COPY")]
        return [
            source
            for copy in copies
            if not copy.rest.startswith("--from=")
            for source in copy.words[:-1]
        ]


def caged(
    command: Sequence[str | Path],
    *,
    writable: Sequence[Path] = (),
    user: int = 10001,
    group: int = 10001,
) -> list[str]:
    """The command as this user, with everything but these folders read-only.

    In new namespaces: Linux enforces it, also against root.
    """
    cage = ["unshare", "--map-root-user", "--mount", "--", "sh", "-euc", _CAGE, "sh"]
    whose = [f"--map-user={user}", f"--map-group={group}"]
    return [*cage, *map(str, writable), "--", *whose, "--", *map(str, command)]


# Only devices and the kernel's file systems stay as they were; a container has these, too.
_CAGE = """
awk '$2 !~ "^/(proc|sys|dev)(/|$)" {print $2}' /proc/mounts > /dev/shm/places-$$
while [ "$1" != -- ]; do mount --bind "$1" "$1"; shift; done; shift
while read -r place; do mount -o remount,bind,ro "$place"; done < /dev/shm/places-$$
rm /dev/shm/places-$$
exec unshare "$@"
"""


def carry_out(stage: Stage, *, context: Path, root: Path, path: str, folder: str = "/") -> None:
    """Execute a stage's steps with `root` in place of `/`; its programs are found on `path`.

    It begins in a folder of the image. Its commands are caged, and can write to `root` alone.

    Raises:
        AssertionError: a step failed; has the step, and its output.
        KeyError: an instruction that this does not support.
    """
    place = root / folder.lstrip("/")
    for instruction in stage.instructions:
        match instruction.keyword:
            case "FROM" | "ENV" | "USER" | "EXPOSE" | "CMD":
                pass
            case "WORKDIR":
                place = root / instruction.rest.lstrip("/")
                place.mkdir(parents=True, exist_ok=True)
            case "COPY":
                *sources, target = instruction.words
                for source in sources:
                    _copy(context / source, place / target, into=target.endswith("/"))
            case "RUN":
                _run(instruction.rest.replace(" /", f" {root}/"), place, root, stage, path)
            case unknown:
                raise KeyError(unknown)


def _copy(source: Path, target: Path, *, into: bool) -> None:
    # As Docker does: a folder's content goes to the target, a file into a target that ends in /.
    (target if into else target.parent).mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target / source.name if into else target)


def _run(command: str, folder: Path, root: Path, stage: Stage, path: str) -> None:
    given = {name: os.environ[name] for name in _OUTSIDE if name in os.environ}
    if authorities := os.environ["SSL_CERT_FILE_OF_PIP"]:  # the other tests trust none
        given["SSL_CERT_FILE"] = authorities
    (root / "tmp").mkdir(exist_ok=True)
    # An image must have no cache in it; here the user's caches save the download. Their files are
    # checked by their hash.
    caches = {name: Path(os.environ.get(name, Path.home() / default)) for name, default in _CACHES}
    for cache in caches.values():
        cache.mkdir(parents=True, exist_ok=True)
    places = {"HOME": folder, "TMPDIR": root / "tmp", **caches}
    environment = {**given, **stage.environment, "PATH": f"{path}:{os.defpath}"}
    environment |= {name: str(place) for name, place in places.items()}
    # To compile what no test imports would take ten seconds of CPU.
    for name in ("PIP_NO_CACHE_DIR", "UV_NO_CACHE", "UV_COMPILE_BYTECODE"):
        environment.pop(name, None)
    done = subprocess.run(
        caged(["/bin/sh", "-c", command], writable=[root, *caches.values()]),
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"RUN {command}\n{done.stdout}"


_CACHES = (("PIP_CACHE_DIR", ".cache/pip"), ("UV_CACHE_DIR", ".cache/uv"))

#: How this machine reaches a package index: a docker build is given these as well.
_OUTSIDE = (
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
    *("PIP_INDEX_URL", "PIP_CONFIG_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE"),
    *("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_CONFIG_FILE", "UV_LINK_MODE"),
)


def _instructions(text: str) -> Iterator[Instruction]:
    lines = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        keyword, _, rest = line.strip().partition(" ")
        yield Instruction(keyword.upper(), rest.strip())
