"""The environment: what is read, what is refused, what is shown."""

import re
from pathlib import Path

import pytest

import pos_gateway
from pos_gateway.domain.errors import InvalidSettings
from pos_gateway.settings import Settings, explain, setting


def test_the_defaults_are_the_contracts() -> None:
    settings = Settings.from_environment({})
    assert settings.broker_url == "amqp://guest:guest@localhost:5672//"
    assert settings.database_url == "sqlite:///pos_gateway.db"
    assert settings.redis_url is None
    assert (settings.metrics_port, settings.slots, settings.request_timeout) == (9808, 200, 10)
    assert settings.metrics_host == "127.0.0.1"
    assert settings.allow_private_addresses is False


def test_an_unknown_variable_is_refused_with_the_nearest_valid_name() -> None:
    with pytest.raises(InvalidSettings, match=r"POS_GATEWAY_SLOT: .*POS_GATEWAY_SLOTS"):
        Settings.from_environment({"POS_GATEWAY_SLOT": "100"})


def test_every_wrong_variable_is_named_at_once() -> None:
    with pytest.raises(InvalidSettings) as caught:
        Settings.from_environment(
            {"POS_GATEWAY_SLOTS": "0", "POS_GATEWAY_REQUEST_TIMEOUT": "nan", "POS_GATEWAY_X": "1"}
        )
    named = {error.field for error in caught.value.errors}
    assert named == {"POS_GATEWAY_SLOTS", "POS_GATEWAY_REQUEST_TIMEOUT", "POS_GATEWAY_X"}


def test_an_empty_variable_counts_as_unset() -> None:
    assert Settings.from_environment({"POS_GATEWAY_SLOTS": ""}).slots == 200


def test_all_settings_are_explained_also_when_some_are_invalid() -> None:
    lines = {line.variable: line for line in explain({"POS_GATEWAY_SLOTS": "many"})}
    assert set(lines) == {f"POS_GATEWAY_{name.upper()}" for name in Settings.model_fields}
    assert lines["POS_GATEWAY_SLOTS"].problem
    assert lines["POS_GATEWAY_SLOTS"].value == "many"
    assert all(line.meaning for line in lines.values())


def test_each_of_several_nodes_is_a_brokers_url() -> None:
    nodes = "amqp://a//;amqps://b//"
    assert Settings.from_environment({"POS_GATEWAY_BROKER_URL": nodes}).broker_url == nodes
    for wrong in ("amqp://a//;http://b//", "amqp://a//;", "amqp://a//;b"):
        with pytest.raises(InvalidSettings, match="must start with amqp://"):
            Settings.from_environment({"POS_GATEWAY_BROKER_URL": wrong})


def test_secrets_are_never_shown() -> None:
    environment = {
        "POS_GATEWAY_SECRET_KEY": "s3cr3t",
        "POS_GATEWAY_TOKEN": "s3cr3t",
        "POS_GATEWAY_DATABASE_URL": "postgresql://user:s3cr3t@db/x",
        "POS_GATEWAY_BROKER_URL": "amqp://u:s3cr3t@a//;amqp://u:s3cr3t@b//",
    }
    assert "s3cr3t" not in repr(explain(environment))
    assert "s3cr3t" not in repr(
        Settings.from_environment({"POS_GATEWAY_SECRET_KEY": "a long s3cr3t passphrase"})
    )


def test_the_value_of_an_unknown_variable_is_not_shown() -> None:
    """It may be a secret under a mistyped name."""
    environment = {"POS_GATEWAY_SECRETKEY": "s3cr3t", "POS_GATEWAY_DATABASE": "amqp://u:s3cr3t@h"}
    assert "s3cr3t" not in repr(explain(environment))
    with pytest.raises(InvalidSettings) as caught:
        Settings.from_environment(environment)
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize("name", ["BROKER_URL", "REDIS_URL"])
def test_a_url_whose_password_would_be_read_as_a_port_is_refused_without_it(name: str) -> None:
    scheme = {"BROKER_URL": "amqp", "REDIS_URL": "redis"}[name]
    with pytest.raises(InvalidSettings, match="%2F") as caught:
        Settings.from_environment({f"POS_GATEWAY_{name}": f"{scheme}://u:s3cr3t/2@h//"})
    assert "s3cr3t" not in str(caught.value)


def test_one_setting_can_be_read_while_others_are_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POS_GATEWAY_SLOTS", "nonsense")
    monkeypatch.setenv("POS_GATEWAY_CANARY_PERCENT", "12.5")
    assert setting("canary_percent") == 12.5
    assert setting("canary_percent", 50) == 50
    with pytest.raises(InvalidSettings, match="POS_GATEWAY_CANARY_PERCENT"):
        setting("canary_percent", 101)


#: The demo writes variables, for its worker.
READS = re.compile(r"\benviron\b(?!\.update\b)|\bgetenv\b")


def test_the_settings_are_the_only_reader_of_the_environment() -> None:
    package = Path(pos_gateway.__file__).parent
    readers = {path for path in package.rglob("*.py") if READS.search(path.read_text())}
    assert readers == {package / "settings.py"}
