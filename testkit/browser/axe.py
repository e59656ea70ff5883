"""Accessibility by axe's rules: what it finds on a page, as sentences."""

from functools import cache
from importlib.resources import files
from typing import Any

from playwright.sync_api import Page

#: Elements named in a sentence.
_NAMED = 5


def violations(page: Page, within: str | None = None) -> list[str]:
    """What breaks axe's rules, the best practices too, a sentence a rule; empty: nothing.

    It is injected from outside the page, so that no Content-Security-Policy refuses it.

    Args:
        page: as it is shown now.
        within: a CSS selector; None: the whole document.
    """
    if not page.evaluate("() => 'axe' in window"):  # the document was looked at before
        page.evaluate(_script())
    found: list[dict[str, Any]] = page.evaluate(_RUN, within)
    return [_sentence(each) for each in found]


_RUN = """async within => {
    // Its rules need no style sheet fetched again.
    const options = {resultTypes: ["violations"], preload: false};
    const found = await axe.run(within ?? document, options);
    return found.violations.map(({id, impact, help, nodes}) => (
        {id, impact, help, where: nodes.map(node => node.target.join(" "))}));
}"""


@cache
def _script() -> str:
    return files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")


def _sentence(found: dict[str, Any]) -> str:
    where = found["where"]
    more = f" and {len(where) - _NAMED} more" if len(where) > _NAMED else ""
    return f"{found['id']} ({found['impact']}): {found['help']}: {', '.join(where[:_NAMED])}{more}"
