"""The version of phitodeep."""

__version__ = "0.3.0"
