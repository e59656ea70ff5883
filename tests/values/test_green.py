"""Green threads."""

import pytest

from pos_gateway import green


def test_others_have_their_turns_after_every_few(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr(green.time, "sleep", lambda seconds: seen.append(f"sleep {seconds}"))
    for item in green.in_turns(range(1, 8), 3):
        seen.append(item)
    assert seen == [1, 2, 3, "sleep 0", 4, 5, 6, "sleep 0", 7]
