"""One Node process for all tests of the explorer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.inspect.explorer.checks import Node, node


@pytest.fixture(scope="session")
def js() -> Iterator[Node]:
    js = node()
    yield js
    js.process.communicate()
