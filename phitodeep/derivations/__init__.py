"""The derivations of all layers and losses, as steps: see derivations/language/step.py."""

# Layers import the derivations, which read the mode of the call: this order has no circle.
from phitodeep.core import call as call
