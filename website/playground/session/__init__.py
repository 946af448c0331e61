"""The playground's Python: it runs in a worker of the browser, and in CPython for tests."""
