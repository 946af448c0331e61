"""Print the polynomials of `phitodeep.functional.erf`, Chebyshev fits computed with mpmath."""

import mpmath as mp

mp.mp.dps = 40
JOIN, FAR, CENTRE = 1, 6, 3  # the two fits meet at 1; from 6 on, erf is 1 in float64


def near(u: mp.mpf) -> mp.mpf:
    """erf(x) / x as a function of u = x^2."""
    return mp.erf(mp.sqrt(u)) / mp.sqrt(u) if u > 0 else 2 / mp.sqrt(mp.pi)


def tail(t: mp.mpf) -> mp.mpf:
    """exp(x^2) erfc(x) as a function of t = (x - 3) / (x + 3)."""
    x = CENTRE * (1 + t) / (1 - t)
    return mp.exp(x * x) * mp.erfc(x)


if __name__ == "__main__":
    t_join, t_far = (mp.mpf(x - CENTRE) / (x + CENTRE) for x in (JOIN, FAR))
    for dtype, n_near, n_tail in (("float64", 11, 14), ("float32", 7, 9)):
        for name, f, interval, n in (
            ("near", near, [mp.mpf(10) ** -30, JOIN], n_near),
            ("tail", tail, [t_join, t_far], n_tail),
        ):
            coefficients, error = mp.chebyfit(f, interval, n, error=True)
            print(dtype, name, "maximum error", mp.nstr(error, 3))
            print("   ", ", ".join(mp.nstr(c, 17) for c in coefficients))
