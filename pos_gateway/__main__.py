"""``python -m pos_gateway`` is ``pos-gateway``."""

from pos_gateway.cli import main

if __name__ == "__main__":
    main()
