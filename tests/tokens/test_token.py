"""A token's text, its digest and its role."""

import hashlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pos_gateway.tokens.token import (
    PATTERN,
    Capability,
    Role,
    digest,
    is_name,
    is_well_formed,
    new_token,
)

#: Of which tokens are made.
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def test_a_token_has_256_random_bits_and_is_found_by_a_scanner() -> None:
    made = [new_token() for _ in range(200)]
    assert all(is_well_formed(token) for token in made)
    assert len({token[4:47] for token in made}) == 200
    # Each of 42 characters has six random bits, so over 200 tokens takes most of 64 values.
    assert all(len({token[at] for token in made}) > 40 for at in range(4, 46))
    token = made[0]
    assert re.findall(PATTERN, f'"Authorization": "Bearer {token}"') == [token]


@given(st.integers(0, 52), st.sampled_from(LETTERS))
def test_one_wrong_character_is_a_typing_mistake(at: int, letter: str) -> None:
    token = new_token()
    typed = token[:at] + letter + token[at + 1 :]
    assert is_well_formed(typed) == (typed == token)


@given(st.integers(4, 51))
def test_two_swapped_characters_are_a_typing_mistake(at: int) -> None:
    token = new_token()
    typed = token[:at] + token[at + 1] + token[at] + token[at + 2 :]
    assert is_well_formed(typed) == (typed == token)


@pytest.mark.parametrize("change", [str.lower, lambda t: t[:-1], lambda t: t + "A", lambda t: t + "\n", lambda t: " " + t])  # fmt: skip
def test_text_of_another_form_is_no_token(change: object) -> None:
    assert callable(change)
    assert not is_well_formed(change(new_token()))
    assert not is_well_formed("")


def test_the_digest_is_sha_256() -> None:
    token = new_token()
    assert digest(token) == hashlib.sha256(token.encode()).hexdigest()


@given(st.text(st.characters()))
def test_any_text_has_a_digest(text: str) -> None:
    """A header may have anything."""
    assert len(digest(text)) == 64


def test_an_operator_may_all_and_a_viewer_only_look() -> None:
    assert {each for each in Capability if Role.OPERATOR.allows(each)} == {*Capability}
    assert {each for each in Capability if Role.VIEWER.allows(each)} == {"read", "inspect"}
    assert {each for each in Capability if Role.BACKEND.allows(each)} == {
        "submit",
        "read",
        "reveal",
    }


def test_a_role_allows_another_only_if_it_may_all_that_the_other_may() -> None:
    allowed = {(each, other) for each in Role for other in Role if each.allows(other)}
    same = {(each, each) for each in Role}
    assert allowed == same | {(Role.OPERATOR, Role.BACKEND), (Role.OPERATOR, Role.VIEWER)}


def test_names_are_plain_and_no_tokens() -> None:
    assert all(map(is_name, ("a", "Shop-2.eu_west", "a" * 128)))
    assert not any(map(is_name, ("", "a" * 129, "a b", "a\n", "ü", "a/b", new_token())))
