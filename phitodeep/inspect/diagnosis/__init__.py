"""What is wrong with a model, with the number that shows it."""
