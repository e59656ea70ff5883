"""Strings that harm a page, a terminal, a log or a table that takes them for more than text.

Those that can run, or make an element, leave a mark that ``testkit/browser/harm.py`` finds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from unicodedata import category

from pos_gateway.domain.record import identifier

#: Every element and attribute that a string makes has this name, or is in an element that has.
MARK = "data-hostile"
#: The script that every string tries to run: no blank and no quotation mark, so that it fits anywhere.
RUN = "window.__ran=(window.__ran||0)+1"
#: What a template engine makes of the templates below; no page has it by chance.
TEMPLATE_RESULT = "1787569"
_PRODUCT = "1337*1337"


@dataclass(frozen=True, slots=True)
class Hostile:
    """One string."""

    name: str
    text: str

    def __str__(self) -> str:
        return self.name

    @property
    def is_identifier(self) -> bool:
        """Whether it may be an order's or a merchant's id, too."""
        return identifier(self.text) is not None


def is_shown(line: str) -> bool:
    """Whether nothing in it ends a line, turns the text around or is invisible, but for joiners in words."""
    hidden = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return not any(category(c) in hidden and c not in "\u200c\u200d" for c in line)


def _all(*texts: Mapping[str, str]) -> dict[str, Hostile]:
    return {name: Hostile(name, text) for each in texts for name, text in each.items()}


_IMG = f"<img {MARK} src=x onerror={RUN}>"

#: It tries to become an element, or to run.
MARKUP = _all(
    {
        "script tag": f"<script {MARK}>{RUN}</script>",
        "script tag without blanks": f"<script/{MARK}>{RUN}</script>",
        "script end": f"</script><script {MARK}>{RUN}</script>",
        "script end in JSON": f'"}}]}}</script><script {MARK}>{RUN}</script>',
        "image with onerror": _IMG,
        "image without blanks": f"<img/{MARK}/src=x/onerror={RUN}>",
        "SVG with onload": f"<svg {MARK} onload={RUN}>",
        "SVG without blanks": f"<svg/{MARK}/onload={RUN}>",
        "SVG with a script": f"<svg {MARK}><script>{RUN}</script></svg>",
        "details with ontoggle": f"<details {MARK} open ontoggle={RUN}>",
        "frame with a document": f'<iframe {MARK} srcdoc="<script>parent.{RUN}</script>"></iframe>',
        "frame with a script's URL": f"<iframe {MARK} src=javascript:parent.{RUN}></iframe>",
        "object": f"<object {MARK} data=javascript:{RUN}></object>",
        "link to a script": f"<a {MARK} href=javascript:{RUN}>click</a>",
        "form": f"<form {MARK} action=/logout method=post><button>Log out</button></form>",
        "base": f"<base {MARK} href=http://127.0.0.1:9/>",
        "refresh": f'<meta {MARK} http-equiv=refresh content="0;url=http://127.0.0.1:9/">',
        "style": f"<style {MARK}>body{{display:none}}</style>",
        "stylesheet": f"<link {MARK} rel=stylesheet href=http://127.0.0.1:9/x.css>",
        "double quotation mark": f'" {MARK} autofocus onfocus={RUN} x="',
        "double quotation mark without blanks": f'"{MARK}/onmouseover={RUN}/x="',
        "single quotation mark": f"' {MARK} autofocus onfocus={RUN} x='",
        "attribute without quotation marks": f"x {MARK} onmouseover={RUN}",
        "tag end": f'">{_IMG}',
        "comment end": f"-->{_IMG}",
        "CDATA end": f"]]>{_IMG}",
        "style end": f"</style>{_IMG}",
        "title end": f"</title>{_IMG}",
        "textarea end": f"</textarea>{_IMG}",
        "select end": f"</option></select>{_IMG}",
        "table end": f"</td></tr></table>{_IMG}",
        "noscript end": f"</noscript>{_IMG}",
        "template end": f"</template>{_IMG}",
        "unfinished tag": f"<img {MARK} src=x onerror={RUN} ",
        "upper case": f"<SCRIPT {MARK}>{RUN}</SCRIPT>",
        "escaped once": f"&lt;img {MARK} src=x onerror={RUN}&gt;",
        "escaped as numbers": f"&#60;img {MARK} src=x onerror={RUN}&#x3e;",
        "escaped twice": f"&amp;lt;img {MARK} src=x onerror={RUN}&amp;gt;",
        "escaped in a URL": f"%3Cimg%20{MARK}%20src=x%20onerror={RUN}%3E",
        "escaped in a script": rf"\u003cimg {MARK} src=x onerror={RUN}\u003e",
        "less-than sign of full width": f"\uff1cimg {MARK} src=x onerror={RUN}\uff1e",
        "script's URL": f"javascript:{RUN}",
        "script's URL with a tab": f"java\tscript:{RUN}",
        "document's URL": f"data:text/html,<script>{RUN}</script>",
        "other host's URL": "//127.0.0.1:9/x",
        "script's string end": f"';{RUN};//",
        "script's double string end": f'";{RUN};//',
        "script's template string": f"${{{RUN}}}`;{RUN};`",
        "script's line end": f"\u2028{RUN}\u2029",
        "style's value": f"red;background:url(javascript:{RUN});position:fixed;inset:0",
        "link of Markdown": f"[click](javascript:{RUN})",
    }
)
#: A template engine, a shell, a table or a statement would evaluate it.
EVALUATED = _all(
    {
        "template of Jinja": f"{{{{{_PRODUCT}}}}} {{% print({_PRODUCT}) %}}",
        "template without blanks": f"{{{{{_PRODUCT}}}}}",
        "template of others": f"${{{_PRODUCT}}} #{{{_PRODUCT}}} <%= {_PRODUCT} %> @({_PRODUCT})",
        "formula": '=HYPERLINK("http://127.0.0.1:9/","click")+cmd|\' /C calc\'!A0',
        "formula with an at sign": "@SUM(1+9)*cmd|' /C calc'!A0",
        "statement": "'; drop table orders; --",
        "pattern": "%_%",
        "format": "%s%n{0}{self.__class__}",
        "shell": "$(touch /tmp/hostile) `touch /tmp/hostile`; touch /tmp/hostile",
        "path": "....//....//etc/passwd",
        "name of JavaScript's": "__proto__",
        "null as a word": "null",
        "backslashes": "\\\\\\\"\\'",
    }
)
#: It ends the line, the header or the message that it stands in.
FRAMING = _all(
    {
        "header": f"x\r\nSet-Cookie: hostile=1\r\nLocation: //127.0.0.1:9/\r\n\r\n{_IMG}",
        "server-sent event": f"x\n\nevent: hostile\nid: 999999\ndata: {_IMG}\n\n",
        "line of a log": 'x\n{"event":"hostile","level":"error"}',
        "many lines": "\n".join(f"line {number}" for number in range(1000)),
        "NUL": "before\x00after",
        "control characters": "".join(map(chr, [*range(1, 32), *range(0x7F, 0xA0)])),
        "terminal's codes": "\x1b[2J\x1b[31mred\x1b[0m\x1b]0;hostile\x07\x1b]8;;http://127.0.0.1:9/\x1b\\x",
    }
)
#: It is shown otherwise than it is written, or takes more room than it seems to.
SHAPE = _all(
    {
        "bidirectional override": "\u202egnp.exe\u202d then \u202eright to left",
        "bidirectional without end": "\u202a\u202b\u202e\u2066\u2067\u2068 opened and not closed",
        "bidirectional end": "\u2069\u2069\u202c\u202c closed and not opened",
        "right to left": "مطعم البحر الأحمر 123 (שלום) 456",
        "zero width": "pay\u200bpal\u200c\u200d\u2060\ufeff\u00ad.com",
        "nothing to be seen": "\u200b\u2060\u3164\u115f",
        "combining marks": "".join(letter + "\u0336\u0489\u0301\u0353" * 20 for letter in "zalgo"),
        "look-alike": "раураl",  # noqa: RUF001  (Cyrillic)
        "emoji": "👩🏽‍🚀👨‍👩‍👧‍👦🏳️‍🌈🇩🇪🇺🇳1️⃣ 🤷🏿‍♀️",
        "unfinished emoji": "👩\u200d\u200d\u200d🏽\U0001f1e9",
        "wide characters": "\ufdfd" * 200,
        "high surrogate": "before \ud800 after",
        "low surrogate": "before \udfff after",
        "no characters": "\ufffe\uffff\U0010ffff",
        "blanks": "  \u00a0 \u3000 ",
        "one word of 5,000 characters": "W" * 5000,
        "word as long as an id": "W" * 128,
        "one megabyte": "0123456789 abcde" * 65_536,
        "one megabyte of markup": (_IMG * (2**20 // len(_IMG) + 1))[: 2**20],
    }
)

#: Every string by its name.
HOSTILE: Mapping[str, Hostile] = {**MARKUP, **EVALUATED, **FRAMING, **SHAPE}
