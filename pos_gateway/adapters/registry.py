"""Which adapters there are, by the name that a merchant's record gives."""

from pos_gateway.adapters.protocol import Adapter
from pos_gateway.adapters.rest import RestAdapter

ADAPTERS: dict[str, Adapter] = {adapter.name: adapter for adapter in (RestAdapter(),)}
