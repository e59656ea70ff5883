"""Every link from one page of the documentation to another leads to a file and a heading."""

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/**/*.md"),
    *ROOT.glob("loadtests/**/*.md"),
    *ROOT.glob("testkit/**/*.md"),
]


def without_code(page: Path) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors of a page, named as GitHub does it: headings of the same words get a number."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#+ (.*)$", without_code(page), re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_has_a_target(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page)):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), link
        assert not anchor or target.suffix != ".md" or anchor in anchors(target), link


def test_the_index_has_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    links = set(re.findall(r"\]\(([\w.-]+)[)#]", without_code(index)))
    assert {page.name for page in (ROOT / "docs").glob("*.*")} - {index.name} <= links


def test_links_are_found() -> None:
    assert sum(without_code(page).count("](") for page in PAGES) > 50
