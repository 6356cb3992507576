"""``python -m envfleet``: the same as the ``envfleet`` command."""

from envfleet.cli.main import main

if __name__ == "__main__":
    main()
