"""What a view is made of. Its functions run on threads: they may read the database, and block."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pos_gateway.server.page.fields import Fields
from pos_gateway.server.page.links import Pattern
from pos_gateway.server.page.visit import Visit
from pos_gateway.tokens.token import Role


class Nav(NamedTuple):
    """A view's entry in the navigation."""

    name: str
    path: str


class Page:
    """A page to render.

    Args:
        template: its file in ``templates/``, which extends ``base.html``.
        title: names it in the browser's tab.
        parts: the live parts that the template shows with ``{{ part("name") }}``.
        context: what the template needs.
    """

    def __init__(
        self,
        template: str,
        title: str,
        *,
        parts: Sequence[str] = (),
        status: int = 200,
        **context: Any,
    ) -> None:
        self.template, self.title, self.parts, self.status = template, title, parts, status
        self.context = context


class Viewer(NamedTuple):
    """For whom a part is rendered: all viewers with the same role and values share it."""

    role: Role
    #: Those that ``Part.takes`` names, from the page's path or its query.
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a page that changes by itself.

    It has no form: what a session's forms carry would be shared. A link leads to an action's page.
    """

    #: Unique among all views'.
    name: str
    #: Its template, which extends nothing.
    template: str
    #: What the template needs. Raises SQLAlchemyError or LedgerUnavailable: the page says so.
    read: Callable[[Viewer], Mapping[str, Any]]
    #: Names of values that it depends on.
    takes: tuple[str, ...] = ()
    #: Seconds between two renders, while a page shows it.
    every: float = 1.0
    #: What the template gets if ``read`` fails; None: the page says why in place of the part.
    otherwise: Callable[[Viewer], Mapping[str, Any]] | None = None


class Get:
    """A page at a path.

    Args:
        path: with places for ids, ``/merchants/{merchant_id}``; its first part is the view's.
        page: makes it. Raises Problem, or what the domain raises: the page says so.
    """

    def __init__(self, path: str, page: Callable[[Visit], Page]) -> None:
        self.pattern = Pattern(path)
        self.page = page


class Act(NamedTuple):
    """A form that was checked: an operator's, with a reason, for the first time."""

    visit: Visit
    form: Fields
    reason: str
    #: Whether the operator may still act, for what goes on after the reply. From any thread.
    may_go_on: Callable[[], bool] = lambda: True

    @property
    def operator(self) -> str:
        """The token's name, for the audit."""
        return self.visit.token.name

    @property
    def values(self) -> Mapping[str, str]:
        """The ids in the path."""
        return self.visit.values


class Done(NamedTuple):
    """An action that was done."""

    #: In a sentence, shown once.
    notice: str
    #: Where the page goes on: a path of the page, made with ``links.link``.
    address: str
    #: What was done found something wrong: the notice is no good news.
    warns: bool = False


class FormAction:
    """An action: GET of its path shows its form, POST does it. See ``acting.py``.

    Args:
        path: with places for ids.
        what: for the audit: ``merchants.pause``.
        page: makes the page with the form, whose template has ``{% call form(visit, "Pause") %}``.
        run: does it. A PosGatewayError refuses it, and the form shows its sentence.
        audits: ``run`` writes the audit's line itself, in its transaction.
    """

    def __init__(
        self,
        path: str,
        what: str,
        *,
        page: Callable[[Visit], Page],
        run: Callable[[Act], Done],
        audits: bool = False,
    ) -> None:
        self.pattern = Pattern(path)
        self.what, self.page, self.run, self.audits = what, page, run, audits


class View:
    """A view: derive from it, and list it in ``listed.py``."""

    nav: Nav | None = None
    #: The first that matches a path counts.
    routes: Sequence[Get | FormAction] = ()
    parts: Sequence[Part] = ()
