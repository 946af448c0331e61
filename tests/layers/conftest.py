"""What tests of several layers share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from phitodeep import kernels


@pytest.fixture(params=["numpy", "numba"])
def kernel_set(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a test with the kernels in NumPy, and with compiled ones."""
    if request.param == "numba":
        pytest.importorskip("numba")
    before = kernels.chosen()
    yield kernels.use(request.param)
    kernels.use(before)
