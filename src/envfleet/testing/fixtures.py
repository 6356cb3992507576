"""Fixtures for pytest: import them into a conftest.py.

from envfleet.testing.fixtures import no_leaks
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from envfleet.testing.leaks import assert_no_leaks


@pytest.fixture
def no_leaks() -> Iterator[None]:
    """Nothing that the test starts or opens outlives it."""
    with assert_no_leaks():
        yield
