"""No password of a URL is shown, however it is written."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pos_gateway.runtime.urls import MASK, mask_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("amqp://u:s3cr3t@h:5672//", f"amqp://u:{MASK}@h:5672//"),
        ("redis://:s3cr3t@h/0", f"redis://:{MASK}@h/0"),
        ("amqp://u:s3/cr3t@h//", f"amqp://u:{MASK}@h//"),
        ("amqp://u:s3?cr#3t@h//", f"amqp://u:{MASK}@h//"),
        ("postgresql://u:s3@cr3t@h/x", f"postgresql://u:{MASK}@h/x"),
        ("amqp://u/x:s3cr3t@h//", f"amqp://u/x:{MASK}@h//"),
        ("u:s3cr3t@h", f"u:{MASK}@h"),
        ("redis:/u:s3cr3t@h", f"redis:{MASK}@h"),
        ("postgresql://h/x?user=u&password=s3cr3t", f"postgresql://h/x?user=u&password={MASK}"),
        ("redis://h/0?db=1&PassWord=s3cr3t", f"redis://h/0?db=1&PassWord={MASK}"),
        ("postgresql://h/x?pass%77ord=s3cr3t", f"postgresql://h/x?pass%77ord={MASK}"),
        ("redis://h?password=s3;cr3t=a@b", f"redis://h?password={MASK}"),
        ("amqp://u:s3cr3t@a//;amqp://u:s3cr3t@b//", f"amqp://u:{MASK}@a//;amqp://u:{MASK}@b//"),
        ("amqp://u:s3;cr3t@a//;amqp://b//", f"amqp://u:{MASK}@a//;amqp://b//"),
        ("https://u:s3cr3t@pos.example/api?token=s3cr3t", f"https://u:{MASK}@pos.example/api?token={MASK}"),
    ],
)  # fmt: skip
def test_a_password_is_masked_everywhere(url: str, shown: str) -> None:
    assert mask_url(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "amqp://u@h//",
        "sqlite:///pos_gateway.db",
        "sqlite:////home/kim@example/pos.db",
        "redis://h:6379/0?db=1",
        "postgresql:///x?host=/run/postgresql&sslmode=require",
        "unix:///run/redis.sock",
        "",
    ],
)
def test_the_rest_of_a_url_is_shown(url: str) -> None:
    assert mask_url(url) == url


_AWKWARD = st.text(st.sampled_from("ab1:/?#@;&=%+ \n"), max_size=12)


@given(before=_AWKWARD, after=_AWKWARD, scheme=st.sampled_from(["amqp", "redis", "postgresql"]))
def test_a_password_is_masked_whatever_surrounds_it(before: str, after: str, scheme: str) -> None:
    for user, host in itertools.product(("", "u"), ("h", "h:5672//", "h/x?a=b", "h;c")):
        assert "s3cr3t" not in mask_url(f"{scheme}://{user}:{before}s3cr3t{after}@{host}")
