"""A POS's words with our secrets removed."""

import json
from base64 import b64encode, urlsafe_b64encode
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pos_gateway.auth.redaction import HIDDEN, SHORTEST, redacted
from pos_gateway.domain.credentials import NONE, ApiKey, Basic, Signature
from pos_gateway.domain.outcome import REASON_LIMIT, Kind, Outcome, Reason

SECRET = 's3cr/et "with" + & ümlaut?'


def said(text: str, *secrets: str, code: str = "x") -> str:
    outcome = redacted(Outcome(Kind.REJECTED, Reason.of(code, text)), secrets or (SECRET,))
    assert outcome.reason is not None
    return outcome.reason.message


def encoded(data: str) -> str:
    return b64encode(data.encode()).decode()


@pytest.mark.parametrize(
    "form",
    [
        SECRET,
        SECRET.upper(),
        quote(SECRET, ""),
        quote(SECRET, "").lower(),
        quote_plus(SECRET),
        json.dumps(SECRET)[1:-1],
    ],
)
def test_a_secret_is_hidden_in_every_encoding(form: str) -> None:
    assert said(f"no {form}, sorry") == f"no {HIDDEN}, sorry"


@pytest.mark.parametrize("before", ["", "u:", "us:", "user:", "Bearer "])
@pytest.mark.parametrize("encode", [b64encode, urlsafe_b64encode])
def test_in_base64_a_secret_is_hidden_at_every_offset(before: str, encode: object) -> None:
    secret = "p?ssw>rd~~-0a1b2c"
    whole = encode(f"{before}{secret}".encode()).decode()  # type: ignore[operator]
    left = said(f"no {whole}", secret)
    assert HIDDEN in left
    assert len(left.removeprefix("no ").replace(HIDDEN, "")) <= len(encoded(before)) + 4


@given(
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=SHORTEST, max_size=40),
    st.text(max_size=20),
    st.text(max_size=20),
)
def test_no_secret_is_left(secret: str, before: str, after: str) -> None:
    left = said(before + secret + after, secret).replace(HIDDEN, "\0")
    assert secret not in left


@pytest.mark.parametrize(
    ("text", "secrets"),
    [
        ("no abcdefgh!", ("abcd", "abcdefgh")),  # the shorter one is a prefix of the longer one
        ("no abcdefgh!", ("abcdefgh", "abcd")),
        ("no abcdefgh!", ("cdef", "abcdefgh")),
        ("no abcdefgh!", ("abcde", "defgh")),  # one begins in the middle of the other
        ("no abcdabcd!", ("abcd",)),
    ],
)
def test_nothing_is_left_of_overlapping_secrets(text: str, secrets: tuple[str, ...]) -> None:
    assert said(text, *secrets) == f"no {HIDDEN}!"


def test_a_truncated_secret_is_hidden_too() -> None:
    text = "x" * (REASON_LIMIT - 10) + SECRET
    assert said(text) == "x" * (REASON_LIMIT - 10) + HIDDEN
    few = "x" * (REASON_LIMIT - SHORTEST + 1) + SECRET
    assert said(few) == few[:REASON_LIMIT]


def test_code_and_id_are_redacted_too() -> None:
    outcome = redacted(
        Outcome(Kind.REJECTED, Reason.of("no-s3cret", ""), external_id="id-s3cret-7"), ("s3cret",)
    )
    assert outcome.reason is not None
    assert (outcome.reason.code, outcome.external_id) == (f"no-{HIDDEN}", f"id-{HIDDEN}-7")


def test_facts_of_a_step_are_redacted_too() -> None:
    facts = {"pos_id": "id-s3cret-7", "version": 3}
    outcome = redacted(Outcome(Kind.ACCEPTED, facts=facts), ("s3cret",))
    assert outcome.facts == {"pos_id": f"id-{HIDDEN}-7", "version": 3}


def test_a_text_without_a_secret_is_unchanged() -> None:
    outcome = Outcome(Kind.REJECTED, Reason.of("x", "y" * REASON_LIMIT), external_id="7")
    assert redacted(outcome, (SECRET,)) is outcome
    assert redacted(outcome, ()) is outcome
    assert redacted(outcome, ("yyy",)) is outcome  # a secret that occurs in every other word


def test_credentials_name_what_the_pos_may_repeat() -> None:
    assert NONE.secrets == ()
    assert ApiKey.model_validate({"type": "api_key", "key": "k1"}).secrets == ("k1",)
    basic = Basic.model_validate({"type": "basic", "username": "us", "password": "p1"})
    assert basic.secrets == ("p1",)
    signature = Signature.model_validate({"type": "hmac", "secret": "whsec_abc="})
    assert signature.secrets == ("whsec_abc=", "abc=")
