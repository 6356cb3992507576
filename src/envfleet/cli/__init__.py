"""The ``envfleet`` command."""
