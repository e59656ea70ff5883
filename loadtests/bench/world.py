"""What a run happens in, all of it fresh: a virtual host, simulated merchants, a database."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from loadtests.bench.gauge import BROKER, DATABASE, SIMULATOR, WORKER
from loadtests.bench.servers import Servers
from loadtests.bench.worker import Worker
from pos_gateway.database.engine import open_database, upgrade
from pos_gateway.domain.merchant import Merchant
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.simulated_merchants.client import SimulatedMerchants

#: POS vendors that the merchants are spread over, so that one silent vendor does not silence all.
_PROVIDERS = 20


@dataclass(frozen=True, slots=True)
class World:
    """Where everything is."""

    servers: Servers
    broker_url: str
    database_url: str
    merchants: SimulatedMerchants
    folder: Path
    #: Certificate authorities to trust; None: the system's.
    ca_file: str | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What a gateway is told, to run in it."""
        trusted = {} if self.ca_file is None else {"POS_GATEWAY_CA_FILE": self.ca_file}
        return {
            **trusted,
            "POS_GATEWAY_BROKER_URL": self.broker_url,
            "POS_GATEWAY_DATABASE_URL": self.database_url,
            "POS_GATEWAY_ALLOW_PRIVATE_ADDRESSES": "true",
            "POS_GATEWAY_METRICS_PORT": "0",
        }

    def parts(self, worker: Worker) -> dict[str, int]:
        """The first process of each part, by its name."""
        parts = {
            WORKER: worker.pid,
            SIMULATOR: self.merchants.pid,
            BROKER: self.servers.rabbitmq.pid,
        }
        if self.servers.postgresql is not None:
            parts[DATABASE] = self.servers.postgresql.pid
        return parts


@contextmanager
def world(
    servers: Servers,
    merchant_ids: Sequence[str],
    profiles: Mapping[str, object] | None = None,
    terms: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    urls: Mapping[str, str] | None = None,
    ca_file: str | None = None,
    seed: int = 0,
) -> Iterator[World]:
    """A world with these merchants, gone at the end of the block.

    Args:
        servers: those that it is put on; they run.
        merchant_ids: a merchant behaves as the profile before its dash: ``healthy-7``.
        profiles: profiles beside those that exist by themselves (``fast``, ``slow``, ``hang``).
        terms: what the records of merchants say beyond their URLs, by the part before the dash;
            without a provider they are spread over many.
        urls: of merchants that are not simulated, by their ids.
        ca_file: certificate authorities that a gateway is to trust.
        seed: what all chances of the simulated merchants come from.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="pos-gateway-world-")))
        scenario = folder / "scenario.json"
        scenario.write_text(json.dumps({"profiles": profiles or {}}))
        merchants = stack.enter_context(SimulatedMerchants(seed=seed, scenario=scenario))
        database_url = stack.enter_context(servers.database(folder))
        _store(database_url, _records(merchants, merchant_ids, terms or {}, urls or {}))
        broker_url = stack.enter_context(servers.vhost())
        yield World(servers, broker_url, database_url, merchants, folder, ca_file)


def _records(
    merchants: SimulatedMerchants,
    ids: Sequence[str],
    terms: Mapping[str, Mapping[str, Any]],
    urls: Mapping[str, str],
) -> Iterator[Merchant]:
    for number, merchant_id in enumerate(ids):
        group = merchant_id.partition("-")[0]
        agreed = {"provider": f"{group}-{number % _PROVIDERS}", **terms.get(group, {})}
        base_url = urls.get(merchant_id) or merchants.base_url(merchant_id)
        yield Merchant.parse({"id": merchant_id, "base_url": base_url, **agreed})


def _store(database_url: str, merchants: Iterator[Merchant]) -> None:
    engine = open_database(database_url)
    try:
        upgrade(engine)
        MerchantStore(engine).put(merchants)
    finally:
        engine.dispose()
