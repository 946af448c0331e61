"""Derived backward steps, rule by rule: their form, and their values beside central differences."""

import re

import numpy as np
import pytest

from phitodeep.derivations.derive.reverse import reverse
from phitodeep.derivations.language import run
from phitodeep.derivations.language.run import Scope
from phitodeep.derivations.language.step import Derivation, Join, Loop, Sum
from tests.testing import test_derived_loops as loops
from tests.testing.test_derived_random import Stepped

SHAPES = {"A": (4, 5), "X": (4, 6, 5), "W": (5, 3), "b": (5,), "s": (1,), "k": (6, 5), "j": (6, 1)}
SHORT = {
    "ZEROS": "z = move X np.zeros_like(X[:, 0])",
    "ROUND": "x_t = move X X[:, t] & p = carry h_t z",
    "BACK": "dh_end = np.zeros_like(dY[:, 0]); back dy_t = dY[:, t] & dh_later = the previous dp, "
    "at first dh_end & dh_t = dy_t + dh_later",
}
ROWS = """
Y = A > 0 | A =>
B = A / b; Y = B * B + b | A b => s = ...d->d dY; dB = 2 * dY * B; dA = dB / b; s_2 = ...d,...d->d
    dA B; db = s - s_2
B = np.sin(A); C = np.cos(A); D = np.exp(A); Y = (B + C) * D | A => dB = dY * D; dA = dB * C + dY *
    D * (B + C) - dB * B
B = np.sin(A); Y = join A B A | A => dA_Y = dY[..., :A.shape[-1]]; dA_Y_2 = dY[..., A.shape[-1] +
    B.shape[-1]:]; dB = dY[..., A.shape[-1]:][..., :B.shape[-1]]; dA = dA_Y + dA_Y_2 + dB *
    np.cos(A)
Y = sum nd->d A | A => dA_one = dY; dA = np.broadcast_to(dA_one, A.shape)
n = sum nd->n1 A; Y = 2 * A / n | A => s = ...d,...d->...1 dY Y; dA = (2 * dY - s) / n
n = sum nd->n1 A; m = n * n; Y = A * m ** 0.5 | A => s = ...d,...d->...1 dY A; dA = dY * m ** 0.5 +
    n * s / m ** 0.5
n = sum nd->n1 A; v = 1 + n * n; r = v ** 0.5; Y = A * r | A => dr = ...d,...d->...1 dY A; dA = dY *
    r + dr * n / v ** 0.5
B = A - np.floor(b); Y = B * b | A b => s = ...d,...d->d dY B; dB = b * dY; dA = dB; db = s
B = move A A[:, 2:]; C = move A A[:, 0]; D = sum nd->n B; Y = C * D | A => dD = dY * C; dB =
    np.broadcast_to(np.expand_dims(dD, -1), B.shape); dC = dY * D; dA_C = dC of A[:, 0]; dA_B = dB
    of A[:, 2:]; dA = dA_C + dA_B
Y = X * s + k * b | X k s b => ds = ...d,...d->1 dY X; s_2 = ...td->td dY; db = ...td,td->d dY k; dX
    = dY * s; dk = b * s_2
Y = np.tanh(X * b) | b => db_each = dY * X * (1 - Y ** 2); db = ...d->d db_each
n = sum ntd->1td X; Y = X + n | X => dn = ntd->1td dY; dX = dY + dn
Y = sum ntd,e->n X b | X b => dY_each = n,e->n dY b; dX = np.broadcast_to(np.expand_dims(dY_each,
    (-2, -1)), X.shape); dY_each_2 = ntd,n-> X dY; db = np.broadcast_to(np.expand_dims(dY_each_2,
    -1), b.shape)
ZEROS; for ROUND & h_t = p + x_t; Y = h_t | X => BACK & dp = dh_t; dX = dp
z = move X X[:, -1]; back ROUND & h_t = np.sin(p) * x_t; Y = h_t | X => dh_end = np.zeros_like(dY[:,
    0]); for dy_t = dY[:, t] & dh_later = the previous dp, at first dh_end & dh_t = dy_t + dh_later
    & dp = dh_t * x_t * np.cos(p); dz = dp[:, -1]; dX_z = dz of X[:, -1]; dX = dh_t * np.sin(p) +
    dX_z
z = move X np.zeros_like(X[:, 0, :1]); for x_t = move X X[:, t] & m = sum nd->n1 x_t & p = carry n_t
    z & n_t = np.sin(p) + m & y_t = x_t * n_t; Y = y_t | X => dn_end = 0 * z; back dy_t_2 = dY[:, t]
    & dn_later = the previous dp, at first dn_end & s = ...d,...d->...1 dy_t_2 x_t & dn_t = dn_later
    + s & dp = dn_t * np.cos(p); dX = dy_t_2 * n_t + dn_t
ZEROS; for x_t = move X X[:, t] & u = sum ...d,d->...d x_t b & p = carry h_t z & h_t = np.sin(p) +
    u; Y = h_t | X b => BACK & dp = dh_t * np.cos(p); dX = ...d,d->...d dh_t b; db = ...d,...d->d
    x_t dh_t
ZEROS; for ROUND & v = sum nd,de->ne x_t W & s_t = sum ne->n1 v & h_t = np.sin(p) * s_t; Y = h_t | X
    W => BACK & dp = dh_t * s_t * np.cos(p); slope_s_t = np.sin(p); ds_t = ...d,...d->...1 dh_t
    slope_s_t; dv_one = ds_t; dv = np.broadcast_to(dv_one, v.shape); dX = nte,de->ntd dv W; dW =
    ntd,nte->de x_t dv
z = move A A[:, :5]; for ROUND & h_t = np.sin(p) * x_t; Y = h_t | X A => BACK & dp = dh_t * x_t *
    np.cos(p); dz = dp[:, 0]; dA = dz of A[:, :5]; dX = dh_t * np.sin(p)
B = move X X[..., :2]; ZEROS; for ROUND & h_t = np.sin(p) + x_t; C = move h_t h_t[..., :2]; Y = B *
    C | X => dC = dY * B; dH_C = dC of h_t[..., :2]; dh_end = np.zeros_like(dH_C[:, 0]); back dh_c_t
    = dH_C[:, t] & dh_later = the previous dp, at first dh_end & dh_t = dh_c_t + dh_later & dp =
    dh_t * np.cos(p); dB = dY * C; dX_B = dB of X[..., :2]; dX = dh_t + dX_B
n = sum nd,d->n1 A b; m = np.sin(n); Y = A * m | A => dm = ...d,...d->...1 dY A; dn = dm *
    np.cos(n); dn_flat = np.squeeze(dn, (-1,)); dA_n = n,d->nd dn_flat b; dA = dY * m + dA_n
Y = sum nd->n1d A | A => dY_flat = np.squeeze(dY, (-2,)); dA = dY_flat
ZEROS; for x_t = move X X[:, t] & top = max nd->n1 x_t & p = carry h_t z & h_t = np.sin(p) * top *
    x_t; Y = h_t | X => BACK & dtop_each = dh_t * x_t * np.sin(p) & dtop = ...d->...1 dtop_each &
    dx_t_top = dtop where x_t is largest, else 0 & dx_t = dh_t * top * np.sin(p) + dx_t_top & dp =
    dh_t * top * x_t * np.cos(p); dX = dx_t
ZEROS; for x_t = move X X[:, t] & f_t = np.exp(x_t) & top = max nd->n1 f_t & p = carry h_t z & h_t =
    np.sin(p) * top * f_t; Y = h_t | X => BACK & dtop_each = dh_t * f_t * np.sin(p) & dtop =
    ...d->...1 dtop_each & df_t_top = dtop where f_t is largest, else 0 & df_t = dh_t * top *
    np.sin(p) + df_t_top & dp = dh_t * f_t * top * np.cos(p); dX = df_t * f_t
ZEROS; for ROUND & h_t = np.tanh(b * p + x_t); Y = h_t | X b => BACK & dx_t = dh_t * (1 - h_t ** 2)
    & dp = b * dx_t; db = ...d,...d->d dx_t p; dX = dx_t
n = sum nd->n1 A; q = 1 / (1 + n * n); v = 1 + n; Y = A * v * q | A => s = ...d,...d->...1 dY A; s_2
    = ...d,...d->...1 dY Y; dA = q * (dY * v + s - 2 * n * s_2)
B = move A A[:, :1]; C = move A A[:, 1:]; Y = C * B | A => dB = ...d,...d->...1 dY C; dC = dY * B;
    dA = np.concatenate([dB, dC], axis=-1)
B = move X X[..., :2]; C = move X X[..., 2:]; D = sum ntd->nt1 C; Y = B * D | X => dD =
    ...d,...d->...1 dY B; dC_one = dD; dC = np.broadcast_to(dC_one, C.shape); dB = dY * D; dX =
    np.concatenate([dB, dC], axis=-1)
B = move A A[:, :3]; C = move A A[:, 2:]; Y = B * C | A => dC = dY * B; dA_C = dC of A[:, 2:]; dB =
    dY * C; dA_B = dB of A[:, :3]; dA = dA_C + dA_B
B = A + s; m = sum nd->n1 B; Y = m * A | s => dm = ...d,...d->...1 dY A; one = 1 + 0 * B; ds =
    ...d,...d->1 dm one
Y = X * j * b | j => dj = d,...td,...td->t1 b dY X
Y = b + np.floor(A) | A b => db = ...d->d dY; dA = A * 0.0
for x_t = move X X[:, t] & h_t = np.sin(b * x_t); Y = move h_t h_t[:, ::-1] | X b => dH = dY[:,
    ::-1]; db_each = dH * x_t * np.cos(b * x_t); db = ...d->d db_each; dX = b * dH * np.cos(b * x_t)
ZEROS; for x_t = move X X[:, t] & u = sum nd,d->nd x_t b & p = carry h_t z & h_t = np.sin(p) + u; Y
    = h_t * X | X => dH = dY * X; dh_end = np.zeros_like(dH[:, 0]); back dy_t = dH[:, t] & dh_later
    = the previous dp, at first dh_end & dh_t = dy_t + dh_later & dp = dh_t * np.cos(p); dX_u =
    ntd,d->ntd dh_t b; dX = dY * h_t + dX_u
ZEROS; for x_t = move X X[:, t] & u = sum nd,de->ne x_t W & v = sum nd,de->ne x_t W & p = carry h_t
    z & m = sum ne,ne->n1 u v & h_t = np.sin(p) + m; Y = h_t | X => BACK & dp = dh_t * np.cos(p); dm
    = ...d->...1 dh_t; dv = dm * u; dX_v = nte,de->ntd dv W; du = dm * v; dX_u = nte,de->ntd du W;
    dX = dX_v + dX_u
"""


def read(text):
    """A step, or a loop whose steps are separated by &."""
    kind, _, rest = text.partition(" ")
    if kind in ("for", "back"):
        return Loop("X", [read(part) for part in rest.split(" & ")], reverse=kind == "back")
    symbol, _, code = text.partition(" = join ")
    return Join(symbol, *code.split()) if code else loops.read(text)


def shown(step):
    if isinstance(step, Loop):
        return f"{'back' if step.reverse else 'for'} {' & '.join(map(shown, step.body))}"
    return " ".join([step.symbol, "=", step.code, *step.operands * isinstance(step, Sum)])


@pytest.mark.parametrize("row", re.split(r"\n(?! )", ROWS.strip()), ids=lambda row: row[:40])
def test_each_rule_reads_like_this(row):
    whole = re.sub("[A-Z]{4,5}", lambda word: SHORT[word[0]], " ".join(row.split()))
    text, _, wanted = whole.partition(" =>")
    text, _, names = text.partition(" | ")
    forward = [read(line) for line in text.split("; ")]
    rng = np.random.default_rng(0)
    values = {n: rng.standard_normal(shape) for n, shape in SHAPES.items()}
    scope = ran(forward, values)
    back = reverse(forward, scope, names.split())
    assert "; ".join(map(shown, back)) == wanted.strip()
    end = forward[-1].symbol
    dY = rng.standard_normal(scope[end].shape) if end == "Y" else np.ones(scope[end].shape)
    scope.values |= {"dY": dY}
    run.run(run.perform(back, scope, "backward"))
    for name in names.split() if back else ():
        step = 1e-6 * rng.standard_normal(SHAPES[name])
        up, down = (ran(forward, values | {name: values[name] + h * step})[end] for h in (1, -1))
        slope = (scope[f"d{name}"] * step).sum()
        assert slope == pytest.approx((dY * (up - down)).sum() / 2, rel=1e-6, abs=1e-12)


def ran(forward, values):
    scope = Scope(Stepped(Derivation(forward, [])), **values)
    run.run(run.forward(scope))
    return scope
