"""What tests of several layers share."""

from __future__ import annotations

import pytest

from phitodeep import kernels


@pytest.fixture(params=["numpy", "numba"])
def kernel_set(request: pytest.FixtureRequest, same_kernels: None) -> str:
    """Run a test with the kernels in NumPy, and with compiled ones."""
    if request.param == "numba":
        pytest.importorskip("numba")
    return kernels.use(request.param)
