"""The page's templates, compiled once in a process: else each site that a test makes compiles them anew."""

from functools import partial
from typing import cast

from jinja2 import BytecodeCache, Environment
from jinja2.bccache import Bucket

from pos_gateway.server.page import render
from pos_gateway.server.page.static import StaticFiles


class _Compiled(BytecodeCache):
    """In memory, by the name and text of a template."""

    def __init__(self) -> None:
        self._code: dict[tuple[str, str], bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        if found := self._code.get((bucket.key, bucket.checksum)):
            bucket.bytecode_from_string(found)

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._code[bucket.key, bucket.checksum] = bucket.bytecode_to_string()


def share() -> None:
    """Have renderers that are made from now on compile a template once in this process."""
    shared = partial(Environment, bytecode_cache=_Compiled())
    render.Environment = cast("type[Environment]", shared)  # type: ignore[misc]


def compile_all() -> None:
    """Compile them all now, for the forks of this process."""
    renderer = render.Renderer((), StaticFiles())
    for path in render.FOLDER.glob("*.html"):
        renderer._environment.get_template(path.name)
