"""The derivations of all layers and losses, written as steps: see `phitodeep/steps/step.py`."""
