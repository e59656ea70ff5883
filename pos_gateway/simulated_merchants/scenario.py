"""Scenarios: which merchant has which profile."""

import json
from collections.abc import Mapping
from pathlib import Path

from pos_gateway.simulated_merchants.errors import ScenarioError
from pos_gateway.simulated_merchants.profiles import PROFILES, Profile, parse_profile

#: The group of merchants that no rule names; they are fast.
OTHER = "other"


class Scenario:
    """Profiles by name, and rules that give them to merchants.

    A rule is a merchant's id or a prefix such as ``slow-*``; an exact id goes before a prefix, a
    longer prefix before a shorter one. What matched is also the merchant's group in reports
    (``slow``), and stays so whatever the merchant is configured to later.
    """

    def __init__(
        self,
        profiles: Mapping[str, object] | None = None,
        merchants: Mapping[str, object] | None = None,
    ) -> None:
        self._profiles = dict(PROFILES)
        for name, value in (profiles or {}).items():
            self._profiles[name] = parse_profile(name, value)
        self._rules = Rules()
        for name, profile in self._profiles.items():
            self._rules.add(f"{name}-*", profile)
        for pattern, value in (merchants or {}).items():
            self._rules.add(pattern, self.profile(value))
        self._overrides = Rules()

    @classmethod
    def read(cls, path: Path) -> "Scenario":
        """The scenario of a JSON file: ``{"profiles": {…}, "merchants": {"slow-*": "name"}}``."""
        try:
            value = json.loads(path.read_text())
        except (OSError, ValueError) as wrong:
            raise ScenarioError(f"scenario {path}: {wrong}") from wrong
        if not isinstance(value, dict) or value.keys() - {"profiles", "merchants"}:
            raise ScenarioError(f"scenario {path}: an object with profiles and merchants")
        for part in value.values():
            if not isinstance(part, dict):
                raise ScenarioError(f"scenario {path}: profiles and merchants are objects")
        return cls(value.get("profiles"), value.get("merchants"))

    def profile(self, value: object) -> Profile:
        """A profile by its name, or one that is given in full and counted as ``custom``."""
        if not isinstance(value, str):
            return parse_profile("custom", value)
        try:
            return self._profiles[value]
        except KeyError:
            known = ", ".join(sorted(self._profiles))
            raise ScenarioError(f"profile {value!r}: one of {known}") from None

    def cast(self, merchant_id: str) -> tuple[str, Profile]:
        """The group and the profile of a merchant."""
        pattern, profile = self._rules.find(merchant_id) or (OTHER, self._profiles["fast"])
        override = self._overrides.find(merchant_id)
        group = pattern.removesuffix("*").removesuffix("-") or OTHER
        return group, override[1] if override else profile

    def override(self, pattern: str, profile: Profile) -> None:
        """From now on the merchants of ``pattern`` have ``profile``, whatever was said before."""
        self._overrides.remove(pattern)
        self._overrides.add(pattern, profile)

    def reset(self) -> None:
        """Take every override back."""
        self._overrides = Rules()


class Rules:
    """Profiles by id and by prefix."""

    def __init__(self) -> None:
        self._exact: dict[str, Profile] = {}
        self._prefixes: dict[str, Profile] = {}

    def add(self, pattern: str, profile: Profile) -> None:
        """Give ``profile`` to the merchants of ``pattern``."""
        (self._prefixes if pattern.endswith("*") else self._exact)[pattern] = profile

    def remove(self, pattern: str) -> None:
        """Forget the rules that ``pattern`` covers: itself and narrower ones."""
        for rules in (self._exact, self._prefixes):
            for covered in [each for each in rules if matches(pattern, each)]:
                del rules[covered]

    def find(self, merchant_id: str) -> tuple[str, Profile] | None:
        """The rule for a merchant: its own, or the one with the longest prefix."""
        if merchant_id in self._exact:
            return merchant_id, self._exact[merchant_id]
        found = [pattern for pattern in self._prefixes if matches(pattern, merchant_id)]
        if not found:
            return None
        longest = max(found, key=len)
        return longest, self._prefixes[longest]


def matches(pattern: str, merchant_id: str) -> bool:
    """Whether ``merchant_id`` is the pattern, or begins as a pattern that ends in ``*`` does."""
    if pattern.endswith("*"):
        return merchant_id.startswith(pattern[:-1])
    return merchant_id == pattern
