"""The story of a run as one page of HTML that needs nothing else: it may be mailed."""

from collections.abc import Iterator, Sequence
from html import escape

from loadtests.load.chart import Chart
from loadtests.load.histogram import buckets
from loadtests.load.story import Section, Table
from loadtests.load.verdict import Word

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --soft: #667085; --paper: #f6f7f9; --card: #fff;
  --rule: #dfe3ea; --met: #16794c; --missed: #b42318; --none: #8a5a00; --s0: #1f8a7d; --s1: #d68a00;
  --s2: #d1495b; --s3: #3a6ea5; --s4: #8e5aa8; --s5: #9aa3b2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --soft: #9aa4b5; --paper: #12161d;
  --card: #1b212b; --rule: #2e3643; --met: #4cc38a; --missed: #ff7b72; --none: #e3b341;
  --s0: #3fbfae; --s1: #f0b23e; --s2: #f0788a; --s3: #6ea8e0; --s4: #bd8fd6; --s5: #667085; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 24px 16px 64px; }
header { border-left: 6px solid var(--verdict); padding: 4px 16px; margin-bottom: 16px; }
h1 { font-size: 26px; margin: 0; }
h1 b { color: var(--verdict); }
header p:first-of-type { font-size: 18px; }
section { background: var(--card); border: 1px solid var(--rule); border-radius: 8px;
  padding: 12px 18px 16px; margin-top: 16px; overflow-x: auto; }
h2 { font-size: 18px; margin: 0 0 4px; }
p { margin: 4px 0; max-width: 110ch; }
table { border-collapse: collapse; margin-top: 10px; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 3px 14px 3px 0; border-bottom: 1px solid var(--rule); }
th { color: var(--soft); font-weight: 500; }
th:first-child, td:first-child { text-align: left; }
td.met { color: var(--met); } td.MISSED { color: var(--missed); font-weight: 700; }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr)); gap: 18px 28px;
  align-items: end; margin-top: 12px; }
figure { margin: 0; min-width: 0; }
figcaption { font-weight: 600; }
figcaption small { display: block; font-weight: 400; color: var(--soft); }
.bars td { border: 0; padding: 0 10px 1px 0; font-size: 13px; line-height: 16px; white-space: nowrap; }
.bars td:last-child { width: 100%; padding: 0; text-align: left; }
.bars { width: 100%; margin-top: 4px; }
.bars i { display: block; height: 11px; background: var(--s0); border-radius: 0 2px 2px 0; }
svg { width: 100%; height: auto; display: block; }
svg text { font-size: 12px; fill: var(--soft); } svg .y { text-anchor: end; }
svg .x { text-anchor: middle; }
.rule { stroke: var(--rule); stroke-width: 1; }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; } .faint { opacity: .45; }
.shade { fill: var(--missed); opacity: .09; } .hover { fill: transparent; }
.hover:hover { fill: var(--ink); opacity: .08; }
""" + "".join(
    f".line.s{n} {{ stroke: var(--s{n}); }} .area.s{n} {{ fill: var(--s{n}); }}\n" for n in range(6)
)


def page(sections: Sequence[Section], word: Word) -> str:
    """The whole file: no script, nothing from elsewhere, light or dark as its reader has it."""
    first, *others = sections
    name, _, verdict = first.title.partition(": ")
    colours = {Word.MET: "--met", Word.MISSED: "--missed", Word.NO_RESULT: "--none"}
    body = "".join(map(_section, others))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(first.title)}</title><style>{_STYLE}"
        f":root {{ --verdict: var({colours[word]}); }}</style></head>\n<body><main>"
        f"<header><h1>{escape(name)}: <b>{escape(verdict)}</b></h1>{_says(first)}</header>"
        f"{body}</main></body></html>\n"
    )


def _section(section: Section) -> str:
    return f"\n<section><h2>{escape(section.title)}</h2>{''.join(_parts(section))}</section>"


def _parts(section: Section) -> Iterator[str]:
    yield _says(section)
    if section.charts:
        yield f'<div class="grid">{"".join(map(_figure, section.charts))}</div>'
    elif section.table is not None:
        yield _table(section.table)
    if section.histograms:
        bars = (_histogram(name, seconds) for name, seconds in section.histograms.items())
        yield f'<div class="grid">{"".join(bars)}</div>'


def _says(section: Section) -> str:
    return "".join(f"<p>{escape(sentence)}</p>" for sentence in section.says)


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in table.rows)
    return f"<table><tr>{head}</tr>{rows}</table>"


def _cell(text: str) -> str:
    mark = f' class="{text}"' if text in ("met", "MISSED") else ""
    return f"<td{mark}>{escape(text)}</td>"


def _figure(chart: Chart) -> str:
    caption = f"{escape(chart.title)}<small>{escape(chart.note)}</small>"
    return f"\n<figure><figcaption>{caption}</figcaption>{chart.svg()}</figure>"


def _histogram(name: str, seconds: Sequence[float]) -> str:
    counted = buckets(seconds)
    most = max(count for _, count in counted)
    rows = "".join(
        f"<tr><td>up to {bound * 1000:,.1f} ms</td><td>{count:,}</td>"
        f'<td><i style="width:{100 * count / most:.1f}%"></i></td></tr>'
        for bound, count in counted
    )
    return f'\n<figure><figcaption>{escape(name)}</figcaption><table class="bars">{rows}</table></figure>'
