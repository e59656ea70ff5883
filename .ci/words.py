"""Prints each line that has a word of ``words.txt``, with what to say instead.

Exits with 1 if there is one. Looks at names, comments, docstrings and texts of all code, and at the
documents; not at the changelog, which is history.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOOKED_AT = ("*.md", "*.py", "*.yml", "*.yaml", "*.toml", "*.sh", "Dockerfile", "Makefile")
#: History, and the words themselves.
NOT = {"CHANGELOG.md", "docs/glossary.md"}


def banned() -> list[tuple[tuple[str, ...], dict[str, str]]]:
    """The words, and what stands there instead; by the folders that they are banned in, "" for all."""
    parts: list[tuple[tuple[str, ...], dict[str, str]]] = [(("",), {})]
    for line in (ROOT / ".ci/words.txt").read_text().splitlines():
        if line.startswith("["):
            parts.append((tuple(f"{each}/" for each in line.strip("[]").split()), {}))
        elif line and not line.startswith("#"):
            word, _, instead = line.partition(":")
            parts[-1][1][word.strip()] = instead.strip()
    return parts


def main() -> int:
    """Look through all files that are tracked."""
    parts = banned()
    listed = subprocess.run(
        ["git", "ls-files", *LOOKED_AT], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = 0
    for name in sorted(set(listed.stdout.splitlines()) - NOT):
        words: dict[str, str] = {}
        for folders, more in parts:
            words |= more if name.startswith(folders) else {}
        pattern = re.compile(rf"\b({'|'.join(words)})\b", re.IGNORECASE)
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
            match = pattern.search(line.replace("_", " "))
            if match is not None and "words: ok" not in line:
                found += 1
                print(f"{name}:{number}: {match[1]}: say {words[match[1].lower()]}")
    return min(found, 1)


if __name__ == "__main__":
    sys.exit(main())
