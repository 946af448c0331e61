"""A step of training that stops where you want."""
