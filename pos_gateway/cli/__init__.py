"""The command line, ``pos-gateway``. A command's modules are imported when it runs."""

import sys
import warnings

from pos_gateway.runtime.streams import open_closed


def main() -> None:
    """The console script's entry."""
    open_closed()
    if not sys.warnoptions:
        # Libraries' warnings are for programmers, not for operators.
        warnings.simplefilter("ignore")
    if sys.argv[1:2] == ["outbox"]:  # a backend has it, with the base install
        from pos_gateway.cli.outbox_program import main as outbox

        sys.exit(outbox(sys.argv[2:]))
    try:
        from pos_gateway.cli.root import root

        root.main(prog_name="pos-gateway")
    except KeyboardInterrupt:  # while a command's modules are imported: Click is not at work yet
        sys.exit(130)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] in _OWN:
            raise
        sys.exit(
            f"pos-gateway: {missing.name} is not installed; the command needs what the worker needs: "
            "pip install 'pos-gateway[worker]'"
        )


#: What is in every installation: that it is missing is a bug.
_OWN = {*sys.stdlib_module_names, "pos_gateway"}
