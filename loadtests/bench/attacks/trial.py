"""A trial: a worker meets a population, undisturbed or under attack."""

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from loadtests.bench.attacks.attack import Attack, Population
from loadtests.bench.attacks.bystander import bystander
from loadtests.bench.candidate import Candidate
from loadtests.bench.servers import Servers
from loadtests.bench.world import World, world
from testkit.hostile.client import HostilePeers

#: Seconds after which an exchange is given up, unless the attack says otherwise.
TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class Trial:
    """What one run is about."""

    candidate: Candidate
    population: Population
    #: None: all merchants stay healthy.
    attack: Attack | None = None

    def __str__(self) -> str:
        return f"{self.candidate.name}, {self.attack.name if self.attack else 'undisturbed'}"

    @property
    def healthy_groups(self) -> list[str]:
        """The groups that stay healthy."""
        troubled = self.attack.troubled if self.attack else ()
        return [each.name for each in self.population.groups if each.name not in troubled]

    def is_healthy(self, merchant_id: str) -> bool:
        """Whether it stays healthy."""
        return self.attack is None or not self.attack.troubles(merchant_id)

    @property
    def timeout(self) -> float:
        """Seconds of an exchange, for a worker that knows but one for all merchants."""
        return (self.attack and self.attack.timeout) or TIMEOUT

    def environment(self, place: World) -> dict[str, str]:
        """What its worker is told."""
        limit = TIMEOUT if self.candidate.accountable else self.timeout
        return self.candidate.environment(place, limit)

    @contextmanager
    def world(self, servers: Servers, latency: float) -> Iterator[World]:
        """Its merchants, who reply after ``latency``, but for those in trouble from the start."""
        terms: Mapping[str, Mapping[str, Any]] = (self.attack or self.population).terms
        ids, profiles = self.population.merchant_ids, self.population.profiles(latency)
        if self.attack is not None and self.attack.hostile:
            troubled = filter(self.attack.troubles, ids)
            with HostilePeers() as peers:
                urls = dict(zip(troubled, cycle(peers.urls), strict=False))
                trusted = peers.ca_file
                with world(servers, ids, profiles, terms, urls=urls, ca_file=trusted) as place:
                    yield place
            return
        with world(servers, ids, profiles, terms) as place, ExitStack() as beside:
            if self.attack is not None and not self.attack.mid_run:
                strike(place, self.attack, latency)
            if self.attack is not None and self.attack.delays:
                beside.enter_context(bystander(place.broker_url, self.attack.delays))
            yield place

    def created(self, place: World) -> int:
        """Orders that the healthy groups have made."""
        counts = place.merchants.summary()["profiles"]
        return sum(counts[group]["creates"] for group in self.healthy_groups if group in counts)


def strike(place: World, attack: Attack, latency: float) -> float:
    """Get the attack's merchants into trouble; returns when they were, by the wall clock."""
    moment = time.time()
    profile = attack.profile_at(moment, latency)
    for group in attack.troubled:
        place.merchants.profile(f"{group}-*", profile)
    return moment
