"""Templates to HTML. Everything is escaped; there is no way around it but ``Markup``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from pos_gateway.server.page import words
from pos_gateway.server.page.charts import chart
from pos_gateway.server.page.foreign import data, plain
from pos_gateway.server.page.heat_map import heat_map
from pos_gateway.server.page.links import link
from pos_gateway.server.page.static import StaticFiles
from pos_gateway.server.page.view import Nav, Page
from pos_gateway.server.page.visit import Visit

FOLDER = Path(__file__).parent / "templates"
_FILTERS = (
    *(words.number, words.seconds, words.duration, words.moment, words.counted),
    words.without_commands,
)


class Renderer:
    """Renders pages and parts. Safe from threads.

    Args:
        nav: the navigation.
        static: the files that pages name.
    """

    def __init__(self, nav: Sequence[Nav], static: StaticFiles) -> None:
        self._nav = nav
        self._environment = Environment(
            loader=FileSystemLoader(FOLDER),
            autoescape=True,
            auto_reload=False,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(data=data, plain=plain)
        for each in _FILTERS:
            self._environment.filters[each.__name__] = each
        self._environment.globals.update(
            nav=nav,
            static=static.address,
            link=link,
            chart=chart,
            heat_map=heat_map,
            in_seconds=words.seconds,
        )

    def here(self, address: str) -> str:
        """The path of the navigation's entry that an address belongs to; empty: of none."""
        path = address.partition("?")[0]
        for entry in self._nav:
            if path == entry.path or (entry.path != "/" and path.startswith(f"{entry.path}/")):
                return entry.path
        return ""

    def page(
        self, page: Page, visit: Visit | None, parts: Mapping[str, str], live: Mapping[str, str]
    ) -> bytes:
        """A whole page.

        Args:
            visit: None: without a login.
            parts: the HTML of the page's live parts, by name.
            live: the values that they depend on.
        """

        def part(name: str) -> Markup:
            wrapper = '<div class="part" id="part-{0}" data-part="{0}">{1}</div>'
            return Markup(wrapper).format(name, Markup(parts[name]))  # noqa: S704  (rendered below)

        query = [("part", each) for each in parts] + sorted(live.items())
        return (
            self._environment.get_template(page.template)
            .render(
                page.context,
                visit=visit,
                title=page.title,
                part=part,
                live=f"/page/live?{urlencode(query)}" if page.parts else None,
                has_nav="nav" in parts,
                nav_here="",
                nav_counts={},
            )
            .encode("utf-8", "replace")
        )

    def part(self, template: str, context: Mapping[str, Any]) -> str:
        """A live part."""
        html = self._environment.get_template(template).render(context)
        return html.encode("utf-8", "replace").decode()
