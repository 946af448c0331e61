"""The explorer: a recorded step of training as one interactive page, and as a picture."""
