"""Rehearse the move: ``python -m loadtests.canary``, five minutes, or with ``--short`` one.

Synchronous workers, as the old ones, and a green canary on one RabbitMQ and one PostgreSQL, under
load: 0, 10 and 50 %, the canary killed, 100 %, and back. Exit code 0 only if no order was lost or
made twice.
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from subprocess import CalledProcessError

from rich.console import Console

from loadtests.canary.rehearsal import Rehearsal, open_merchants
from pos_gateway.settings import forget_environment
from testkit.faults.site import site
from testkit.servers.postgresql import PostgreSQL
from testkit.servers.process import ServerFailedError
from testkit.servers.rabbitmq import RabbitMQ


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table and what does not add up; 0 if all does, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.canary", description=__doc__)
    parser.add_argument(
        "--short", action="store_true", help="steps of 2 s: a look whether it works"
    )
    parser.add_argument(
        "--picture",
        type=Path,
        default=Path("build/canary-demo.svg"),
        metavar="FILE",
        help="where the move is drawn, as SVG (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    forget_environment()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # told to stop, it clears up as well
    console = Console()
    try:
        with (
            RabbitMQ() as rabbitmq,
            PostgreSQL() as postgresql,
            site(rabbitmq, postgresql, seed=1, open_merchants=open_merchants) as here,
        ):
            seconds = 2.0 if options.short else 40.0
            rehearsal = Rehearsal(here, console, seconds=seconds, drawing=options.picture)
            problems = rehearsal.play(old=1 if options.short else 2)
    except KeyboardInterrupt:
        return 130
    except (TimeoutError, ServerFailedError) as error:
        problems = [str(error)]
    except CalledProcessError as error:
        problems = [error.stderr.strip()]
    for problem in problems:
        console.print(f"[red]does not add up:[/red] {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
