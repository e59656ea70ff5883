"""``.ci/house.py`` finds what is planted against each of its rules, and raises no limit."""

import runpy
from pathlib import Path

import pytest

from tests.planting import ROOT

HOUSE = runpy.run_path(str(ROOT / ".ci/house.py"))
MAIN = HOUSE["main"]

LANE, QUEUE = "pos_gateway/worker/lane.py", "pos_gateway/worker/queue.py"
LIMITS = ".ci/house.toml"
FILES = {
    LANE: '"""Starts a merchant\'s orders."""\n\nclass Lane:\n    pass\n',
    QUEUE: 'from pos_gateway.worker import lane\n\nMARK = "# it is that"\n',
    "tests/worker/test_lane.py": "\n" * 10,
    "tests/page/test_page.py": "\n" * 10,
    "testkit/site.py": "\n" * 10,
    LIMITS: """# Why.
[lines]
"pos_gateway/worker" = 20  # Lanes.
tests = 20
"tests of the engine" = 10
testkit = 60
""",
}
FUNCTION = '''
def start(order, *, slots: int = 1, **more):
    """Starts.

    Args:
        order: to start.
        slots: how many; default:
            many: a second line.
        **more: options.
        place: a slot's old name.
    """
'''
CLASSES = '''
class Started(Base):
    """An order.

    Args:
        slot: of the constructor.
        place: a field, and the constructor has none.
    """
    place: int
    def __init__(self, slot): ...

class Slot(NamedTuple):
    """A slot.

    Args:
        number: a field.
        count: no field.
    """
    number: int
'''


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "planted", "failures"),
    [
        (LANE, "", {}),
        (LANE, "\n" * 14, {"pos_gateway/worker has 21 lines, and the limit is 20: remove some"}),
        (
            "tests/ledger/test_claim.py",
            "\n",
            {
                "tests has 21 lines, and the limit is 20: remove some",
                "tests of the engine has 11 lines, and the limit is 10: remove some",
            },
        ),
        (
            "pos_gateway/attempt/spine.py",
            "# Such as it is.\n",
            {
                "pos_gateway/attempt has 1 lines, and the limit is 0: remove some",
                "pos_gateway/attempt has 50.0 % pronouns in docstrings and comments, and the limit "
                "is 0: name the component",
            },
        ),
        (
            "pos_gateway/settings.py",
            "\n",
            {"pos_gateway/*.py has 1 lines, and the limit is 0: remove some"},
        ),
        (
            QUEUE,
            "class Lane: ...\n",
            {
                "Lane has 2 classes of this name, and the limit is 1: give each a name of its own "
                f"({LANE}, {QUEUE})."
            },
        ),
        *(
            (
                LANE,
                planted,
                {
                    f"pos_gateway.worker.{module} has 2 modules in its import circle, and the limit "
                    "is 0: move what both sides need below both "
                    f"(imports pos_gateway.worker.{imported})."
                    for module, imported in (("lane", "queue"), ("queue", "lane"))
                },
            )
            for planted in (
                "if TYPE_CHECKING:\n    import pos_gateway.worker.queue\n",
                "def start():\n    from pos_gateway.worker.queue import MARK\n",
            )
        ),
        (
            LANE,
            "# It wakes up a lane.\n",
            {
                "pos_gateway/worker has 11.1 % pronouns in docstrings and comments, and the limit "
                "is 0: name the component instead."
            },
        ),
        (
            LANE,
            FUNCTION,
            {
                f"{LANE} has 1 documented parameters that do not exist, and the limit is 0: name "
                "them as the signature does (start: place)."
            },
        ),
        (
            "testkit/site.py",
            CLASSES,
            {
                "testkit/site.py has 2 documented parameters that do not exist, and the limit is 0: "
                "name them as the signature does (Started: place, Slot: count)."
            },
        ),
    ],
)
def test_a_number_above_its_limit_fails(
    checkout: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    planted: str,
    failures: set[str],
) -> None:
    path = checkout / name
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.write(planted)
    assert MAIN([], checkout) == bool(failures)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(failures)
    assert all(line.startswith(tuple(failures)) for line in printed), printed


def test_a_limit_above_its_number_fails_until_it_is_lowered(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = checkout / LIMITS
    limits.write_text(
        FILES[LIMITS].replace("20  # Lanes.", "58  # Lanes.").replace("tests = 20", "tests = 19")
        + "demo = 9\n\n[names]\nLane = 2\n\n[pronouns]\nPage = 3.0\n"
    )
    above = (
        "tests has 20 lines, and the limit is 19: remove some, or raise it in a commit that names "
    )
    above += "what was removed."
    assert MAIN([], checkout) == 1
    assert capsys.readouterr().out.splitlines() == [
        "demo needs no limit of lines any more: remove it with --update.",
        "pos_gateway/worker has 7 lines, and the limit is 58: lower it to 7 with --update.",
        above,
        "Lane needs no limit of names any more: remove it with --update.",
        "Page needs no limit of pronouns any more: remove it with --update.",
    ]
    assert MAIN(["--update"], checkout) == 1
    assert capsys.readouterr().out.splitlines() == [above]
    assert limits.read_text() == (
        FILES[LIMITS]
        .replace("20  # Lanes.", "7  # Lanes.")
        .replace("tests = 20", "tests = 19")
        .replace("testkit = 60", "testkit = 10")
        + "\n[names]\n\n[pronouns]\n"
    )


@pytest.mark.parametrize(
    ("rule", "number", "most"),
    [
        ("lines", 100, 150),
        ("lines", 10_000, 10_200),
        ("names", 3, 3),
        ("circles", 3, 3),
        ("pronouns", 3.1, 3.3),
    ],
)
def test_a_limit_may_be_a_little_above_its_number(rule: str, number: float, most: float) -> None:
    numbers = {key: {} for key in HOUSE["RULES"]} | {rule: {"lane": (number, "")}}
    assert not list(HOUSE["failures"](numbers, {rule: {"lane": most}}))
    above = most + (0.1 if rule == "pronouns" else 1)
    assert len(list(HOUSE["failures"](numbers, {rule: {"lane": above}}))) == 1
