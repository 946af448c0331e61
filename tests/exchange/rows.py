"""Which layers the tests of exports take: all rows in a long run, else those that are unlike."""

from tests.rows import ALL, LONG

_UNLIKE = {(repr(row[0]()), len(row[1])): row for row in reversed(ALL)}  # other sizes are alike
EACH = ALL if LONG else [*_UNLIKE.values()][::-1]
