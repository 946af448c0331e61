"""Reading and writing models as files."""
