"""What tests of several layers share."""

import pytest

from phitodeep import kernels


@pytest.fixture(params=["numpy", "numba"])
def kernel_set(request, same_kernels):
    """Run a test with the kernels in NumPy, and with compiled ones."""
    if request.param == "numba":
        pytest.importorskip("numba")
    return kernels.use(request.param)
