"""``pos-gateway doctor``: each file checks one thing that the gateway needs."""
