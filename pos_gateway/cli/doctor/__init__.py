"""``pos-gateway doctor``: one check per file."""
