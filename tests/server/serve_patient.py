"""``python -m tests.server.serve_patient serve …`` is ``pos-gateway serve`` that waits ten minutes for a request.

A test of half-sent requests needs them for as long as the machine takes to look at them.
"""

from pos_gateway.cli import main
from pos_gateway.server import uvicorn_internals

if __name__ == "__main__":
    uvicorn_internals.REQUEST_TIMEOUT = 600.0
    main()
