"""What text has done to a page that shows it: the strings are those of ``testkit/hostile_text.py``."""

from playwright.sync_api import Page

from testkit.hostile_text import MARK, TEMPLATE_RESULT


def harm(page: Page) -> list[str]:
    """The harm that text has done to the page, a sentence each; empty: it is shown as text.

    Whether a script ran, an element or an attribute came of it, a template was evaluated, the page
    is wider than its window, or bidirectional text turns its neighbours around.
    """
    found: list[str] = page.evaluate(_LOOK, {"mark": MARK, "result": TEMPLATE_RESULT})
    return found


_LOOK = r"""({mark, result}) => {
    const harm = [];
    const shown = element => element.outerHTML.slice(0, 120);
    if (window.__ran) harm.push(`its scripts ran ${window.__ran} times`);
    for (const element of document.querySelectorAll(`[${mark}], ${mark}`)) {
        harm.push(`it made ${shown(element)}`);
    }
    const root = document.documentElement;
    if (root.scrollWidth > root.clientWidth) {
        const right = [...document.querySelectorAll("body *")].find(
            each => each.getBoundingClientRect().right > root.clientWidth + 1);
        harm.push(`the page is ${root.scrollWidth} pixels wide in a window of ${root.clientWidth}`
            + (right ? `, by ${shown(right)}` : ""));
    }
    const turns = /[\u202a-\u202e\u2066-\u2069]/;
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        const above = node.parentElement;
        if (/^(SCRIPT|STYLE|TEMPLATE|NOSCRIPT)$/.test(above.tagName)) continue;
        const text = node.data;
        if (text.includes(result)) harm.push(`a template was evaluated: ${shown(above)}`);
        if (!turns.test(text)) continue;
        // It turns around what stands with it in a block, unless an element between isolates it.
        let each = above, isolated = false;
        for (; each && getComputedStyle(each).display === "inline"; each = each.parentElement) {
            isolated ||= /isolate|plaintext/.test(getComputedStyle(each).unicodeBidi);
        }
        if (!isolated && each && each.textContent.trim() !== text.trim()) {
            harm.push(`bidirectional text turns its neighbours around: ${shown(each)}`);
        }
    }
    return harm;
}"""
