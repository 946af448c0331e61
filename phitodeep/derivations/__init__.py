"""The derivations of all layers and losses, written as steps: see `phitodeep/steps/step.py`."""

# Layers import the derivations, which read the mode of the call: this order has no circle.
from phitodeep.layers import call as call
