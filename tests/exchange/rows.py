"""Which layers the tests of exports take: all rows in a long run, else those that are unlike."""

from phitodeep import layers as L
from tests.rows import ALL, LONG

WITHOUT_FORM = (L.Bilinear, L.CrossAttention)  # which exports refuse


def has_forms(layer):
    """Whether other formats can hold all layers inside."""
    parts = [part for _, part in layer.walk()]
    states = any(getattr(part, "return_state", False) for part in parts)
    return not states and not any(isinstance(part, WITHOUT_FORM) for part in parts)


_KNOWN = [row for row in ALL if has_forms(row[0]())]
_UNLIKE = {(repr(row[0]()), len(row[1])): row for row in reversed(_KNOWN)}  # other sizes are alike
EACH = _KNOWN if LONG else [*_UNLIKE.values()][::-1]
