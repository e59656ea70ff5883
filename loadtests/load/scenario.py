"""Load scenarios: which merchants there are, when orders come, and what is wanted."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, Field, ValidationError
from pydantic import model_validator as validator

from loadtests.load.shapes import AnyShape, Seconds
from pos_gateway.domain.record import field_errors
from pos_gateway.simulated_merchants.errors import ScenarioError
from pos_gateway.simulated_merchants.profiles import parse_profile
from testkit.faults.adapters import QueryableAdapter

FOLDER = Path(__file__).resolve().parents[1] / "scenarios"

_CLASS_NAME = re.compile(r"[a-z][a-z0-9]*")
_OBJECTIVE = re.compile(r"accepted|(enqueue|pos|event)_p(50|90|95|99)")


def _objectives(wanted: Mapping[str, float]) -> Mapping[str, float]:
    for name in wanted:
        if not _OBJECTIVE.fullmatch(name):
            raise ValueError(
                f"{name} is no objective: give accepted (a share), or enqueue, pos or event with "
                "_p50, _p90, _p95 or _p99 (seconds), pos_p99 say"
            )
    return wanted


def _class_name(name: str) -> str:
    if not _CLASS_NAME.fullmatch(name):
        raise ValueError("a class's name is a word of small letters and digits, healthy say")
    return name


#: What stands before the dash in its merchants' ids.
ClassName = Annotated[str, AfterValidator(_class_name)]
#: At least this share of the class's orders is accepted; at most these seconds pass.
Objectives = Annotated[
    dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]], AfterValidator(_objectives)
]


class _Part(BaseModel):
    model_config = {"frozen": True, "extra": "forbid"}


class Outage(_Part):
    """A stretch of the run in which all merchants of a class are in trouble."""

    #: Seconds from the first order.
    begins: Seconds
    ends: Seconds
    behaviour: Any = "hang"


class MerchantClass(_Part):
    """Merchants that are alike.

    A behaviour is what ``pos_gateway/simulated_merchants/behaviour.py`` has: the name of a kind, a kind with its
    figures, a list of them with weights, two that alternate, or ``create`` and ``lookups``.
    """

    description: str = ""
    number: Annotated[int, Field(ge=1, le=10_000)]
    #: Orders beside the other classes': a percentage, say.
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    #: What their records say; without a provider they are spread over many.
    max_concurrency: Annotated[int, Field(ge=1, le=10_000)] | None = None
    request_timeout: Annotated[float, Field(gt=0, le=120)] | None = None
    provider: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    #: They honour an idempotency key. Without one each request for an order makes another, and the
    #: gateway has to ask before it sends one again.
    keyed: bool = True
    #: One of the two. Of a merchant that accepts, how long that takes.
    latency: Any = None
    behaviour: Any = None
    outage: Outage | None = None
    objectives: Objectives = Field(default_factory=dict)

    @validator(mode="after")
    def _can_be_played(self) -> Self:
        if (self.latency is None) == (self.behaviour is None):
            raise ValueError("give either latency or behaviour (which may have a latency)")
        parse_profile("scenario", self.profile(0.0))
        return self

    @property
    def terms(self) -> dict[str, Any]:
        """What the records of its merchants say beyond their URLs."""
        names = ("max_concurrency", "request_timeout", "provider")
        terms = {name: value for name in names if (value := getattr(self, name)) is not None}
        return terms if self.keyed else {**terms, "adapter": QueryableAdapter.name}

    def profile(self, began: float) -> dict[str, Any]:
        """How simulated merchants are told to behave in a run that began at that moment."""
        usual = {**_long(self.behaviour or {"latency": self.latency}), "keyed": self.keyed}
        if self.outage is None:
            return usual
        outage, when = _long(self.outage.behaviour), self.outage.model_dump(exclude={"behaviour"})
        mixes = {
            name: {
                "usual": usual.get(name, usual["create"]),
                "outage": outage.get(name, outage["create"]),
                **when,
                "since": began,
            }
            for name in ("create", "lookups")
        }
        return {**usual, **mixes}


class LoadScenario(_Part):
    """A load that ``python -m loadtests.load`` and locust can bring."""

    #: Where it was read from.
    file: Path
    description: str
    #: What all chance comes from.
    seed: int = 1
    seconds: Annotated[float, Field(gt=0, le=7 * 86_400)]
    #: Order backends, which share the orders.
    backends: Annotated[int, Field(ge=1, le=1000)] = 10
    #: Seconds after which an order is worthless; then nothing is left to wait for.
    deliver_within: Annotated[float, Field(gt=0, le=3600)]
    #: Seconds by which one order in a hundred may be late, or one reply of the simulated merchants':
    #: beyond it the run is none.
    tolerance: Annotated[float, Field(gt=0)] = 0.05
    arrivals: AnyShape
    merchants: Annotated[dict[ClassName, MerchantClass], Field(min_length=1)]

    @classmethod
    def read(cls, name: str, *, seconds: float | None = None) -> Self:
        """The scenario of that name, or of a file; ``seconds`` in place of its own.

        Raises:
            ScenarioError: there is none, or it cannot be played; a line for each mistake.
        """
        path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
        try:
            values = tomllib.loads(path.read_text())
        except FileNotFoundError:
            known = ", ".join(names())
            raise ScenarioError(f"scenario {name!r}: one of {known}, or a .toml file") from None
        except (OSError, ValueError) as wrong:
            raise ScenarioError(f"scenario {path.name}: {wrong}") from None
        if seconds is not None:
            values["seconds"] = seconds
        try:
            scenario = cls.model_validate({**values, "file": path})
        except ValidationError as error:
            mistakes = list(map(str, field_errors(error)))
        else:
            mistakes = list(scenario._begun_too_late())
        if mistakes:
            raise ScenarioError("\n".join(f"scenario {path.name}: {each}" for each in mistakes))
        return scenario

    @property
    def name(self) -> str:
        """What it is called."""
        return self.file.stem

    @property
    def merchant_ids(self) -> list[str]:
        """All merchants."""
        return [each for name in self.merchants for each in self.members(name)]

    def members(self, name: str) -> Sequence[str]:
        """The merchants of a class: ``healthy-0``, ``healthy-1``, …"""
        return [f"{name}-{number}" for number in range(self.merchants[name].number)]

    @property
    def terms(self) -> dict[str, dict[str, Any]]:
        """What is agreed with each class."""
        return {name: each.terms for name, each in self.merchants.items()}

    def profiles(self, began: float) -> dict[str, object]:
        """How each class behaves in a run that began at that moment."""
        return {name: each.profile(began) for name, each in self.merchants.items()}

    def picks(self, chance: Random) -> Iterator[str]:
        """Merchants by chance, each class as often as its weight says; never in a pattern."""
        weights = [each.weight for each in self.merchants.values()]
        members = [self.members(name) for name in self.merchants]
        while True:
            yield chance.choice(chance.choices(members, weights)[0])

    def orders(self, backend: str) -> Iterator[tuple[float, str]]:
        """The orders of a backend: seconds from the beginning, and the merchant.

        Backends are alike but for their chance, which hangs on the seed and their names alone.
        """
        chance = Random(f"{self.seed}/{backend}")
        merchants = self.picks(chance)
        for second in self.arrivals.arrivals(self.seconds, chance, share=1 / self.backends):
            yield second, next(merchants)

    def _begun_too_late(self) -> Iterator[str]:
        outages = {f"merchants.{name}.outage": each.outage for name, each in self.merchants.items()}
        for where, part in {"arrivals": self.arrivals, **outages}.items():
            if (begins := getattr(part, "begins", 0.0)) >= self.seconds:
                yield f"{where}.begins: must be before the end, {self.seconds:g} s (got {begins:g})"


def names() -> list[str]:
    """The scenarios that there are."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def _long(behaviour: Any) -> dict[str, Any]:
    match behaviour:
        case str():
            return {"create": {"kind": behaviour}}
        case {"create": _}:
            return dict(behaviour)
        case _:
            return {"create": behaviour}
