"""Wrong gradients that real libraries shipped, each as a small layer of ours: see bug.py."""
