"""Models as Python files that require NumPy alone."""
