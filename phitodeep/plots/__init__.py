"""Pictures of models and of their training, drawn by matplotlib: `pip install "phitodeep[plot]"`.

Every function returns a figure, or the Axes that it was given as `ax`, and saves the picture if
`path` is given. Notebooks show the figure without further preparation. Signed values are blue below
0 and orange above. `architecture` and `step` return SVG and need no library.
"""

from phitodeep.plots.architecture import architecture
from phitodeep.plots.attention import attention
from phitodeep.plots.boundary import decision_boundary
from phitodeep.plots.confusion import confusion_matrix
from phitodeep.plots.curves import history, rates
from phitodeep.plots.embedding import embedding
from phitodeep.plots.feature_maps import feature_maps
from phitodeep.plots.filters import filters
from phitodeep.plots.gradients import gradient_flow
from phitodeep.plots.histograms import histograms
from phitodeep.plots.step import step

__all__ = [
    "architecture", "attention", "confusion_matrix", "decision_boundary", "embedding",
    "feature_maps", "filters", "gradient_flow", "histograms", "history", "rates", "step",
]  # fmt: skip
