"""The available adapters, by the name in a merchant's record.

The built-in ones are listed here. Others come from installed packages, through entry points in the
group ``pos_gateway.adapters``: the entry point's name is the adapter's, its value a class (or any
callable) that is called without arguments. A broken adapter is logged and left out: merchants of
the other adapters are not affected.
"""

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points

import structlog

from pos_gateway.adapters.clover import CloverAdapter
from pos_gateway.adapters.hubrise import HubRiseAdapter
from pos_gateway.adapters.protocol import Adapter
from pos_gateway.adapters.rest import RestAdapter
from pos_gateway.adapters.square import SquareAdapter
from pos_gateway.adapters.steps import steps_of
from pos_gateway.adapters.toast import ToastAdapter
from pos_gateway.domain.errors import FieldError
from pos_gateway.domain.merchant import Merchant

log = structlog.get_logger(__name__)

GROUP = "pos_gateway.adapters"
BUILT_IN: tuple[Adapter, ...] = (
    RestAdapter(),
    SquareAdapter(),
    ToastAdapter(),
    CloverAdapter(),
    HubRiseAdapter(),
)


#: Called with an adapter that cannot be used, and the reason.
OnBroken = Callable[[EntryPoint, BaseException], None]


def _log(entry: EntryPoint, why: BaseException) -> None:
    log.error("adapter.unusable", adapter=entry.name, value=entry.value, error=repr(why))


def adapters(on_broken: OnBroken = _log) -> dict[str, Adapter]:
    """Every usable adapter, by name. Reads the installed packages' entry points."""
    return collect(entry_points(group=GROUP), on_broken)


def collect(others: Iterable[EntryPoint], on_broken: OnBroken = _log) -> dict[str, Adapter]:
    """The built-in adapters and the usable ones of these entry points."""
    found = {adapter.name: adapter for adapter in BUILT_IN}
    for entry in others:
        try:
            adapter = _load(entry, found)
        except (Exception, SystemExit) as error:  # noqa: BLE001  (third-party code raises anything)
            on_broken(entry, error)
        else:
            found[adapter.name] = adapter
    return found


def _load(entry: EntryPoint, taken: dict[str, Adapter]) -> Adapter:
    adapter = entry.load()()
    if not isinstance(adapter, Adapter):
        raise TypeError("lacks something that pos_gateway.adapters.protocol.Adapter has")
    if adapter.name != entry.name:
        raise ValueError(f"calls itself {adapter.name!r}")
    if adapter.name in taken:
        raise ValueError("the name is taken")
    steps_of(adapter)
    return adapter


def misfits(merchant: Merchant, known: Mapping[str, Adapter]) -> list[FieldError]:
    """Errors in the merchant for its adapter, which may be unknown here."""
    adapter = known.get(merchant.adapter)
    if adapter is None:
        problem = f"is not one of the adapters here: {', '.join(sorted(known))}"
        return [FieldError("adapter", problem, merchant.adapter)]
    return adapter.check(merchant)
