"""Pictures and pages that show a step of training."""
