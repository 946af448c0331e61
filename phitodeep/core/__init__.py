"""What all rooms stand on: checks of arguments, configs, files, state, the mode of a pass."""
