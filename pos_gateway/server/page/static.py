"""Style sheet and script, from memory; a file's name has its digest, so that browsers keep it."""

import hashlib
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "static"
#: Where they are served.
PATH = "/page/static/"
_TYPES = {
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}


class File(NamedTuple):
    """A file, and its media type."""

    body: bytes
    type: bytes


class StaticFiles:
    """All files of the folder."""

    def __init__(self) -> None:
        self._files: dict[str, File] = {}
        self._names: dict[str, str] = {}
        for path in sorted(each for each in FOLDER.iterdir() if each.suffix in _TYPES):
            body = path.read_bytes()
            hashed = f"{path.stem}.{hashlib.sha256(body).hexdigest()[:16]}{path.suffix}"
            self._files[PATH + hashed] = File(body, _TYPES[path.suffix])
            self._names[path.name] = PATH + hashed

    def address(self, name: str) -> str:
        """The path of a file, by its name in the folder."""
        return self._names[name]

    def get(self, path: str) -> File | None:
        """The file at this path."""
        return self._files.get(path)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(len(each.body) for each in self._files.values())
