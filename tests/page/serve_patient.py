"""``python -m tests.page.serve_patient serve …`` is ``pos-gateway serve`` whose actions may take a minute.

The check of a merchant starts a process, which takes long beside other tests.
"""

from pos_gateway.cli import main
from pos_gateway.server.page import acting, merchant_check
from testkit.patience import PATIENCE

if __name__ == "__main__":
    # Less than a browser waits for: a page that says so is a better failure.
    merchant_check.TIMEOUT, acting.TIMEOUT = PATIENCE - 20, PATIENCE - 10
    main()
