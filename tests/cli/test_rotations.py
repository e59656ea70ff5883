"""docs/rotations.md, executed in this process: its commands, in the page's order."""

import json
import re
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from pos_gateway.domain.merchant import Merchant
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Key, State
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.runtime.vault import Vault, new_key
from pos_gateway.simulated_merchants.client import SimulatedMerchants
from testkit.servers.postgresql import PostgreSQL
from testkit.servers.rabbitmq import RabbitMQ
from tests.cli.books import Books
from tests.cli.conftest import PATIENCE, Orders, Program

PAGE = (Path(__file__).parents[2] / "docs" / "rotations.md").read_text()
#: One Kubernetes command of ours, or a setting.
_STEP = re.compile(
    r"^ *(?:kubectl exec (?:-i )?deploy/\S+ -- (?:env \S+ )?|docker run --rm --init \S+ )"
    r"pos-gateway ([^\n<>]*)([^\n]*)$|^ *(POS_GATEWAY_[A-Z_]+): (\S+)$",
    re.MULTILINE,
)


def section(title: str) -> str:
    [found] = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    return str(found)


def steps(title: str) -> list[tuple[str, ...]]:
    """The section's commands, as words, and its settings, as (NAME=VALUE,), in order."""
    return [
        tuple(shlex.split(each[1])) if each[1] else (f"{each[3]}={each[4]}",)
        for each in _STEP.finditer(section(title))
    ]


def statements(title: str) -> list[str]:
    blocks = re.findall(r"^ *```sql\n(.*?)^ *```", section(title), re.M | re.S)
    return [each.strip() for block in blocks for each in block.split(";") if each.strip()]


def done(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout


def do(program: Program, step: tuple[str, ...], stdin: str = "") -> str:
    """Execute a step of the page; `merchants check` replaces its process, so it has its own."""
    if step[:2] != ("merchants", "check"):
        return done(program.invoke(*step, stdin=stdin))
    ended = program.run(*step)
    assert ended.returncode == 0, ended
    return ended.stdout


@pytest.fixture
def merchant(simulated_merchants: SimulatedMerchants) -> dict[str, Any]:
    """The page's merchant, at a POS that answers."""
    auth = {"type": "bearer", "token": "old-t0ken"}
    return {"id": "m-8", "base_url": simulated_merchants.base_url("m-8"), "auth": auth}


def test_the_master_key_is_rotated_and_all_pods_open_everything_at_each_step(
    program: Program,
    database_url: str,
    order: Callable[..., dict[str, Any]],
    merchant: dict[str, Any],
) -> None:
    """Pods are replaced one at a time: those of the step before open what the next ones seal."""
    keys = {"OLD": new_key()}
    before = Books(database_url, order, keys["OLD"])
    before.order("o-1", State.FAILED, customer={"name": "Quackenbush"})
    engine = before.engine
    program.settings["POS_GATEWAY_SECRET_KEY"] = keys["OLD"]
    done(program.invoke("merchants", "import", "-", stdin=json.dumps(merchant)))
    said, settings = list[str](), 0
    for step in steps("The master key"):
        if "=" in step[0]:
            former = program.settings["POS_GATEWAY_SECRET_KEY"]
            names = step[0].partition("=")[2].split(",")
            present = ",".join(keys[name] for name in names)
            program.settings["POS_GATEWAY_SECRET_KEY"] = present
            settings += 1
            for number, (writes, reads) in enumerate(((present, former), (former, present))):
                token = {"type": "bearer", "token": f"t0ken-{settings}-{number}"}
                record = Merchant.parse({**merchant, "auth": token})
                MerchantStore(engine, vault=Vault(writes)).put([record])
                assert MerchantStore(engine, vault=Vault(reads)).get(["m-8"]) == {"m-8": record}
        elif step == ("secrets", "key"):
            keys["NEW"] = done(program.invoke(*step)).strip()
        else:
            said.append(do(program, step))
    assert settings == 3
    assert "1 of 1 merchants sealed anew\n1 of 1 orders sealed anew" in said[0]
    assert re.findall(r"^(\d+) of", said[1], re.M) == ["0"] * 5
    [payload] = payloads(before)
    assert b"Quackenbush" in Payloads(Vault(keys["NEW"])).open(Key("m-1", "o-1"), payload)
    before.close()


def payloads(books: Books) -> list[str]:
    with books.engine.connect() as connection:
        return list(connection.scalars(text("select payload from orders")))


def test_a_merchants_credential_is_changed_without_being_shown(
    migrated: Program, merchant: dict[str, Any]
) -> None:
    migrated.settings |= {
        "POS_GATEWAY_SECRET_KEY": new_key(),
        "POS_GATEWAY_ALLOW_PRIVATE_ADDRESSES": "true",
    }
    done(migrated.invoke("merchants", "import", "-", stdin=json.dumps(merchant)))
    said = [do(migrated, step, "new-t0ken\n") for step in steps("One merchant's credential")]
    assert len(said) == 4
    assert said[1].startswith("ok")
    assert "yearly rotation" in said[3]
    assert not any("t0ken" in each for each in said)
    kept = json.loads(done(migrated.invoke("merchants", "export", "m-8", "--reveal")))
    assert kept["auth"]["token"] == "new-t0ken"


def test_an_http_token_is_replaced(migrated: Program) -> None:
    done(migrated.invoke("tokens", "create", "shop", "--role", "backend", "--as", "kim"))
    for step in steps("An HTTP token"):
        done(migrated.invoke(*step))
    listed = map(json.loads, done(migrated.invoke("tokens", "list", "--json")).splitlines())
    assert {each["name"]: each["revoked_at"] is not None for each in listed} == {
        "shop": True,
        "shop-2": False,
    }


@pytest.fixture
def owned_by_gateway(postgresql: PostgreSQL, postgres_url: str) -> Iterator[str]:
    """The URL of a database whose tables the role `gateway` owns."""
    superuser = create_engine(postgres_url, isolation_level="AUTOCOMMIT")
    with superuser.connect() as connection:
        connection.execute(text("create role gateway login"))
        connection.execute(text("alter schema public owner to gateway"))
        yield as_user(postgres_url, "gateway")
        connection.execute(text("drop owned by gateway cascade"))
        connection.execute(text("drop role if exists gateway_2"))
        connection.execute(text("drop role gateway"))
    superuser.dispose()


def as_user(url: str, name: str) -> str:
    return make_url(url).set(username=name).render_as_string(hide_password=False)


def test_the_databases_login_is_replaced_by_another_with_its_rights(
    program: Program, owned_by_gateway: str, postgres_url: str
) -> None:
    first, second = owned_by_gateway, as_user(postgres_url, "gateway_2")
    done(program.invoke("db", "upgrade", POS_GATEWAY_DATABASE_URL=first))
    make, set_role, who, end = statements("The database's password")
    superuser = create_engine(postgres_url, isolation_level="AUTOCOMMIT")
    with superuser.connect() as connection:
        connection.execute(text(make))
        connection.execute(text(set_role))
        record = {"id": "m-8", "base_url": "https://pos.example"}
        for url in (first, second):
            done(
                program.invoke(
                    "merchants",
                    "import",
                    "-",
                    stdin=json.dumps(record),
                    POS_GATEWAY_DATABASE_URL=url,
                )
            )
        later = create_engine(second.replace("postgresql:", "postgresql+psycopg:"))
        with later.begin() as pod:
            pod.execute(text("create table of_the_next_release (id integer)"))
            query, until = text(who.replace("%", "%%")), time.monotonic() + PATIENCE
            # The commands have closed their connections, and the backends of these end soon.
            while (there := connection.execute(query).all()) != [("gateway_2", 1)]:
                assert time.monotonic() < until, there
                time.sleep(0.01)
        later.dispose()
        owners = "select tableowner from pg_tables where tablename = 'of_the_next_release'"
        assert connection.scalar(text(owners)) == "gateway"
        connection.execute(text(end))
    superuser.dispose()
    assert "m-8" in done(program.invoke("merchants", "list", POS_GATEWAY_DATABASE_URL=second))
    refused = program.invoke("merchants", "list", POS_GATEWAY_DATABASE_URL=first)
    assert refused.exit_code != 0
    assert "gateway" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_the_brokers_user_is_replaced_by_another(
    connected: Program, rabbitmq: RabbitMQ, orders: Orders, order: Callable[..., dict[str, Any]]
) -> None:
    first = connected.settings["POS_GATEWAY_BROKER_URL"]
    second, third = (rabbitmq.add_user(name, first) for name in ("gateway-1", "gateway-2"))
    for number, url in enumerate((second, third)):
        line = json.dumps(order(f"o-{number}"))
        done(connected.invoke("enqueue", "-", stdin=line, POS_GATEWAY_BROKER_URL=url))
    rabbitmq.eval('rabbit_auth_backend_internal:delete_user(<<"gateway-1">>, <<"tests">>)')
    line = json.dumps(order("o-2"))
    refused = connected.invoke("enqueue", "-", stdin=line, POS_GATEWAY_BROKER_URL=second)
    assert refused.exit_code != 0
    assert "gateway-1:gateway-1" not in refused.stderr
    done(connected.invoke("enqueue", "-", stdin=line, POS_GATEWAY_BROKER_URL=third))
    assert orders.take(3) == ["o-0", "o-1", "o-2"]


def test_a_key_put_first_at_once_is_noticed(
    program: Program, books: Books, merchant: dict[str, Any]
) -> None:
    """The fault that the page's first step is against: a pod that has not restarted yet."""
    old, new = new_key(), new_key()
    record = Merchant.parse(merchant)
    MerchantStore(books.engine, vault=Vault(f"{new},{old}")).put([record])
    assert MerchantStore(books.engine, vault=Vault(old)).get(["m-8"]) != {"m-8": record}
