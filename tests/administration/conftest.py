"""A database of each kind, with merchants, workers that report, and a clock."""

from collections.abc import Sequence

import pytest
from sqlalchemy import Engine

from pos_gateway.audit.note import By
from pos_gateway.domain.errors import FieldError
from pos_gateway.domain.merchant import Merchant
from pos_gateway.merchants.admin import MerchantAdmin
from pos_gateway.runtime.vault import Vault, new_key
from tests.reports.lab import Reports
from tests.tokens.conftest import HandClock

KEY = new_key()
KIM = By("kim")


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def reports(engine: Engine) -> Reports:
    return Reports(engine)


def nothing_wrong(_merchant: Merchant) -> Sequence[FieldError]:
    """What an adapter finds in a merchant that fits."""
    return []


@pytest.fixture
def admin(engine: Engine, clock: HandClock) -> MerchantAdmin:
    return MerchantAdmin(engine, Vault(KEY), nothing_wrong, clock)


def a_merchant(merchant_id: str = "m", **fields: object) -> Merchant:
    return Merchant.parse({"id": merchant_id, "base_url": "https://pos.example.com", **fields})
