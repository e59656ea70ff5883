"""The table of adversaries: ``python -m tests.admission.adversaries``, with a part of their names."""

import sys
from collections.abc import Sequence

from tests.admission.adversaries.table import ADVERSARIES


def main(names: Sequence[str] = ()) -> None:
    """Play the adversaries with a part in their names; all by default."""
    print(
        "| merchants beside the healthy ones | healthy p99, ms | their slots | first slot, s | cut short |"
    )
    print("|---|---:|---:|---:|---:|")
    for adversary in ADVERSARIES:
        if names and not any(name in adversary.name for name in names):
            continue
        driver = adversary.play()
        healthy, others = driver.seen.get("healthy"), driver.seen.get("others")
        cells = [f"{healthy.p99() * 1000:.1f}" if healthy else "", "", "", ""]
        if others is not None:
            first = max(others.first.values(), default=0.0)
            cells[1:] = [f"{others.held:.0f}", f"{first:.1f}", f"{driver.cut_short}"]
        print(f"| {adversary.name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
