"""Facts of an order at the POS: values for the next step, or for the next attempt."""

import json
import re
from collections.abc import Mapping

from pos_gateway.domain.errors import FieldError, InvalidFacts

#: The POS's order id, version, total ..., by name: texts and whole numbers.
Facts = Mapping[str, str | int]

#: Maximum bytes of an order's facts as JSON: the facts lie in the order's row.
FACTS_LIMIT = 2048
_NAME = re.compile(r"[a-z][a-z0-9_]{0,23}")


def facts_json(facts: Facts) -> str:
    """The facts as compact JSON in ASCII, names in order: equal facts have equal texts.

    Raises:
        InvalidFacts: names each wrong fact.
    """
    problems = [problem for name, value in facts.items() for problem in _problems(name, value)]
    if problems:
        raise InvalidFacts(problems)
    text = json.dumps(dict(facts), separators=(",", ":"), sort_keys=True)
    if len(text) > FACTS_LIMIT:
        longest = max(facts, key=lambda name: len(json.dumps(facts[name])))
        problem = (
            f"are {len(text)} bytes as JSON, at most {FACTS_LIMIT} are kept: shorten {longest}"
        )
        raise InvalidFacts([FieldError("facts", problem)])
    return text


def read_facts(text: str) -> dict[str, str | int]:
    """The facts in a text of ``facts_json``.

    Raises:
        InvalidFacts: the text is no JSON object, or names each wrong fact.
    """
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidFacts([FieldError("facts", f"are not JSON: {error}")]) from None
    if not isinstance(facts, dict):
        raise InvalidFacts([FieldError("facts", "should be a JSON object", facts)])
    facts_json(facts)
    return facts


def _problems(name: object, value: object) -> list[FieldError]:
    found = []
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        problem = "a name should be 1 to 24 characters of a-z, 0-9 and _, and begin with a letter"
        found.append(FieldError("facts", problem, name))
    if isinstance(value, bool) or not isinstance(value, str | int):
        found.append(FieldError(f"facts.{name:.24}", "should be text or a whole number", value))
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        found.append(FieldError(f"facts.{name:.24}", "should be a whole number of 64 bits"))
    return found
