"""Fixtures of the unit tests."""

from __future__ import annotations

import pytest

from ddl.merge.choice import kernel_by_name
from ddl.merge.kernel import Kernel


@pytest.fixture(scope="session", params=["torch/1", "numba/1"])
def kernel(request: pytest.FixtureRequest) -> Kernel:
    """Each kernel in turn; what holds for one holds for the other."""
    return kernel_by_name(request.param)
