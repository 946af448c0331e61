"""One Node process for all tests of the explorer."""

import pytest

from tests.inspect.explorer.checks import node


@pytest.fixture(scope="session")
def js():
    js = node()
    yield js
    js.process.communicate()
