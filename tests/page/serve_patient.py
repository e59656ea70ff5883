"""``python -m tests.page.serve_patient serve …`` is ``pos-gateway serve`` whose actions may take a minute.

The check of a merchant starts a process, which takes long beside other tests.
"""

from pos_gateway.cli import main
from pos_gateway.server.page import acting, merchant_check

if __name__ == "__main__":
    merchant_check.TIMEOUT, acting.TIMEOUT = 50.0, 55.0
    main()
