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


def banned() -> dict[str, str]:
    """The words, and what stands there instead."""
    lines = (ROOT / ".ci/words.txt").read_text().splitlines()
    pairs = (line.partition(":") for line in lines if line and not line.startswith("#"))
    return {word.strip(): instead.strip() for word, _, instead in pairs}


def main() -> int:
    """Look through all files that are tracked."""
    words = banned()
    pattern = re.compile(rf"\b({'|'.join(words)})\b", re.IGNORECASE)
    listed = subprocess.run(
        ["git", "ls-files", *LOOKED_AT], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = 0
    for name in sorted(set(listed.stdout.splitlines()) - NOT):
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
            match = pattern.search(line.replace("_", " "))
            if match is not None and "words: ok" not in line:
                found += 1
                print(f"{name}:{number}: {match[1]}: say {words[match[1].lower()]}")
    return min(found, 1)


if __name__ == "__main__":
    sys.exit(main())
