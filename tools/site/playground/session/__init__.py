"""The Python side of the playground: it runs in a worker of the browser, and in CPython for tests."""
