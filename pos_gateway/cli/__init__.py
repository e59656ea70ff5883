"""The command line, ``pos-gateway``. A command's modules are imported when it is run."""

import sys
import warnings


def main() -> None:
    """The console script's entry."""
    from pos_gateway.cli.root import root

    if not sys.warnoptions:
        # What libraries say to programmers means nothing to who runs a command.
        warnings.simplefilter("ignore")
    root.main(prog_name="pos-gateway")
