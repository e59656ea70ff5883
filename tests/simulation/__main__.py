"""Replays a run of the simulation, or searches for one that fails."""

import sys
from argparse import ArgumentParser

from rich.progress import track

from tests.simulation.faults import FAULTS, planted
from tests.simulation.world import run

#: Seeds after which a fault counts as not shown by any run.
MOST = 2000


def main() -> int:
    parser = ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, help="replay this one, and print all that happens")
    what.add_argument("--seeds", metavar="A-B", help="run all from A to B")
    what.add_argument("--faults", action="store_true", help="the first seed that shows each fault")
    given = parser.parse_args()
    if given.seed is not None:
        report = run(given.seed)
        print(report.text())
        return bool(report.violations)
    if given.faults:
        for fault in FAULTS:
            with planted(fault):
                shown = (seed for seed in range(MOST) if run(seed).violations)
                print(next(shown, None), fault.rule, flush=True)
        return 0
    first, _, last = given.seeds.partition("-")
    if not (first.isdecimal() and last.isdecimal()):
        parser.error(f"--seeds {given.seeds!r} is not two whole numbers, as in 0-999")
    failed = 0
    for seed in track(range(int(first), int(last) + 1), description="Seeds"):
        violations = run(seed).violations
        if violations:
            failed += 1
            print(f"seed {seed}: {'; '.join(violations)}")
            print(f"  python -m tests.simulation --seed {seed}")
    print(f"{failed} of {int(last) - int(first) + 1} seeds failed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
