"""The playground: what the build makes for it, and the Python that runs in its worker."""
