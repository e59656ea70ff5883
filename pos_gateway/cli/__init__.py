"""The command line, ``pos-gateway``. A command's modules are imported when it runs."""

import sys
import warnings


def main() -> None:
    """The console script's entry."""
    from pos_gateway.cli.root import root

    if not sys.warnoptions:
        # Libraries' warnings are for programmers, not for operators.
        warnings.simplefilter("ignore")
    root.main(prog_name="pos-gateway")
