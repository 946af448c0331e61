"""Derived backward steps, rule by rule: form is a promise, and the values are those of calculus."""

import re

import numpy as np
import pytest

from phitodeep.derivations.derive.reverse import reverse
from phitodeep.derivations.language import run
from phitodeep.derivations.language.run import Scope
from phitodeep.derivations.language.step import Derivation, Join, Loop, Sum
from phitodeep.layers import Layer
from tests.testing import test_derived_loops as loops

SHAPES = {"A": (4, 5), "X": (4, 6, 5), "W": (5, 3), "b": (5,), "s": (1,), "k": (6, 5), "V": (4, 5, 7)}
ROWS = """
n = sum nd,d->n1 A b; Y = A * n | A b
    => dn = ...d,...d->...1 dY A; dn_flat = np.squeeze(dn, (-1,)); dA_n = n,d->nd dn_flat b;
        dn_flat_2 = np.squeeze(dn, (-1,)); db = nd,n->d A dn_flat_2; dA = dY * n + dA_n
n = sum nd,d->n1 A b; Y = np.tanh(n) + A | A
    => slope_n = 1 - np.tanh(n) ** 2; dn = ...d,...d->...1 dY slope_n; dn_flat = np.squeeze(dn,
        (-1,)); dA_n = n,d->nd dn_flat b; dA = dY + dA_n
n = sum nd,d->n1 A b; Y = np.tanh(n) * A | A
    => dn_each = dY * A * (1 - np.tanh(n) ** 2); dn = ...d->...1 dn_each; dn_flat = np.squeeze(dn,
        (-1,)); dA_n = n,d->nd dn_flat b; dA = dY * np.tanh(n) + dA_n
Y = A > 0 | A
    => 
B = A / b; Y = B * B + b | A b
    => s = ...d->d dY; dB = 2 * dY * B; dA = dB / b; s_2 = ...d,...d->d dA B; db = s - s_2
B = np.sin(A); C = np.cos(A); D = np.exp(A); Y = (B + C) * D | A
    => dB = dY * D; dA = dB * C + dY * D * (B + C) - dB * B
B = np.sin(A); Y = join A B A | A
    => dA_Y = dY[..., :A.shape[-1]]; dA_Y_2 = dY[..., A.shape[-1] + B.shape[-1]:]; dB = dY[...,
        A.shape[-1]:][..., :B.shape[-1]]; dA = dA_Y + dA_Y_2 + dB * np.cos(A)
n = sum nd->n1 A; Y = 2 * A / n | A
    => s = ...d,...d->...1 dY Y; dA = (2 * dY - s) / n
n = sum nd->n1 A; m = n * n; Y = A * m ** 0.5 | A
    => s = ...d,...d->...1 dY A; dA = dY * m ** 0.5 + n * s / m ** 0.5
n = sum nd->n1 A; v = 1 + n * n; r = v ** 0.5; Y = A * r | A
    => dr = ...d,...d->...1 dY A; dA = dY * r + dr * n / v ** 0.5
n = sum nd->n1 A; v = 1 + n * n; r = v ** -0.5; Y = A * r | A
    => s = ...d,...d->...1 dY Y; dA = dY * r - n * s / r / v ** 1.5
n = sum nd->n1 A; v = 1 + n * n; Y = A * v | A
    => dv = ...d,...d->...1 dY A; dA = dY * v + 2 * dv * n
B = A - np.floor(b); Y = B * b | A b
    => s = ...d,...d->d dY B; dB = b * dY; dA = dB; db = s
B = move A A[:, :2]; C = move A A[:, 2:]; D = sum nd->n1 C; Y = B * D | A
    => dD = ...d,...d->...1 dY B; dC_one = dD; dC = np.broadcast_to(dC_one, C.shape); dB = dY * D;
        dA = np.concatenate([dB, dC], axis=-1)
B = move A A[:, 2:]; C = move A A[:, :2]; D = sum nd->n1 B; Y = C * D | A
    => dD = ...d,...d->...1 dY C; dC = dY * D; dB_one = dD; dB = np.broadcast_to(dB_one, B.shape);
        dA = np.concatenate([dC, dB], axis=-1)
B = move A A[:, 2:]; C = move A A[:, :2]; D = sum nd->n1 B; Y = C * D + 0 * D | A
    => dD = ...d,...d->...1 dY C; dC = dY * D; dB_one = dD; dB = np.broadcast_to(dB_one, B.shape);
        dA = np.concatenate([dC, dB], axis=-1)
B = move A A[:, 2:]; C = move A A[:, 0]; D = sum nd->n B; Y = C * D | A
    => dD = dY * C; dB = np.broadcast_to(np.expand_dims(dD, -1), B.shape); dC = dY * D; dA_C = dC
        of A[:, 0]; dA_B = dB of A[:, 2:]; dA = dA_C + dA_B
Y = A * b + s | A b s
    => db = ...d,...d->d dY A; ds = ...d->1 dY; dA = b * dY
Y = X * k + s | X k s
    => dk = ...td,...td->td dY X; ds = ...d->1 dY; dX = dY * k
Y = X * s + k * b | X k s b
    => ds = ...d,...d->1 dY X; s_2 = ...td->td dY; db = ...td,td->d dY k; dX = dY * s; dk = b *
        s_2
Y = np.sin(k * b) * X | k b
    => s = ...td,...td->td dY X; db_each = dY * k * X * np.cos(b * k); db = ...d->d db_each; dk =
        b * s * np.cos(b * k)
Y = X * np.sin(b) | b
    => s = ...d,...d->d dY X; db = s * np.cos(b)
Y = X * np.sin(k) * np.sin(b) | b
    => db_each = dY * X * np.sin(k); s = ...d->d db_each; db = s * np.cos(b)
Y = np.tanh(X * b) | b
    => db_each = dY * X * (1 - Y ** 2); db = ...d->d db_each
Y = X * b + X * X * b ** 2 | b
    => db_each = dY * X * (1 + 2 * b * X); db = ...d->d db_each
Y = X * s | s
    => ds = ...d,...d->1 dY X
Y = X + s | s
    => ds = ...d->1 dY
Y = X + b | b
    => db = ...d->d dY
n = sum nd->n1 A; Y = A + n | A
    => dn = ...d->...1 dY; dA = dY + dn
n = sum ntd->n11 X; Y = X + n | X
    => dn = ...td->...11 dY; dX = dY + dn
n = sum ntd->nt1 X; Y = X + n | X
    => dn = ...d->...1 dY; dX = dY + dn
n = sum ntd->n1d X; Y = X + n | X
    => dn = ...td->...1d dY; dX = dY + dn
n = sum ntd->1td X; Y = X + n | X
    => dn = ntd->1td dY; dX = dY + dn
n = sum ntd->1td X; Y = X * n | X
    => dn = ntd,ntd->1td dY X; dX = dY * n + dn
n = sum ntd-> X; Y = X * n | X
    => dn = ...d,...d-> dY X; dX = dY * n + dn
n = sum ntd->n11 X; Y = X * n * k | X
    => dn = ...td,td,...td->...11 dY k X; dX = dY * k * n + dn
Y = sum ntd,d->nt X b | X b
    => dX = nt,d->ntd dY b; db = ntd,nt->d X dY
Y = sum ntd,td->nt X k | X k
    => dX = nt,td->ntd dY k; dk = ntd,nt->td X dY
Y = sum ntd,td->nt1 X k | X k
    => dY_flat = np.squeeze(dY, (-1,)); dX = nt,td->ntd dY_flat k; dY_flat_2 = np.squeeze(dY,
        (-1,)); dk = ntd,nt->td X dY_flat_2
Y = sum nd,nd->nd A A | A
    => dA = 2 * dY * A
Y = sum nd,de->ne A W | A W
    => dA = ne,de->nd dY W; dW = nd,ne->de A dY
Y = sum ...d,de->...e X W | X W
    => dX = ...e,de->...d dY W; dW = ...d,...e->de X dY
Y = sum ntd,nsd->nts X X | X
    => dX_Y = nts,nsd->ntd dY X; dX_Y_2 = ntd,nts->nsd X dY; dX = dX_Y + dX_Y_2
Y = sum nd,d,nd->n A b A | A b
    => dA_Y = nd,d,n->nd A b dY; db = nd,n,nd->d A dY A; dA = 2 * dA_Y
Y = sum nd->d A | A
    => dA_one = dY; dA = np.broadcast_to(dA_one, A.shape)
Y = sum ntd,e->n X b | X b
    => dY_each = n,e->n dY b; dX = np.broadcast_to(np.expand_dims(dY_each, (-2, -1)), X.shape);
        dY_each_2 = ntd,n-> X dY; db = np.broadcast_to(np.expand_dims(dY_each_2, -1), b.shape)
for x_t = move X X[:, t] & u_t = np.sin(b * x_t) & h_t = np.tanh(u_t * x_t); Y = h_t | X b
    => du_t = dY * x_t * (1 - h_t ** 2); db_each = du_t * x_t * np.cos(b * x_t); db = ...d->d
        db_each; dX = b * du_t * np.cos(b * x_t) + dY * u_t * (1 - h_t ** 2)
z = move X np.zeros_like(X[:, 0]); for x_t = move X X[:, t] & p = carry h_t z & h_t = p + x_t; Y =
        h_t | X
    => dh_end = np.zeros_like(dY[:, 0]); back dy_t = dY[:, t] & dh_later = the previous dp, at
        first dh_end & dh_t = dy_t + dh_later & dp = dh_t; dX = dp
z = move X X[:, -1]; back x_t = move X X[:, t] & p = carry h_t z & h_t = np.sin(p) * x_t; Y = h_t
        | X
    => dh_end = np.zeros_like(dY[:, 0]); for dy_t = dY[:, t] & dh_later = the previous dp, at
        first dh_end & dh_t = dy_t + dh_later & dp = dh_t * x_t * np.cos(p); dz = dp[:, -1]; dX_z
        = dz of X[:, -1]; dX = dh_t * np.sin(p) + dX_z
z = move X np.zeros_like(X[:, 0]); for x_t = move X X[:, t] & top = max nd->n1 x_t & p = carry h_t
        z & h_t = np.sin(p) * top; Y = h_t | X
    => dh_end = np.zeros_like(dY[:, 0]); back dy_t = dY[:, t] & dh_later = the previous dp, at
        first dh_end & dh_t = dy_t + dh_later & slope_top = np.sin(p) & dtop = ...d,...d->...1
        dh_t slope_top & dx_t = dtop where x_t is largest, else 0 & dp = dh_t * top * np.cos(p);
        dX = dx_t
z = move X np.zeros_like(X[:, 0]); for x_t = move X X[:, t] & e_t = np.exp(x_t) & top = max nd->n1
        e_t & p = carry h_t z & h_t = np.sin(p) * top; Y = h_t | X
    => dh_end = np.zeros_like(dY[:, 0]); back dy_t = dY[:, t] & dh_later = the previous dp, at
        first dh_end & dh_t = dy_t + dh_later & slope_top = np.sin(p) & dtop = ...d,...d->...1
        dh_t slope_top & de_t = dtop where e_t is largest, else 0 & dp = dh_t * top * np.cos(p);
        dX = de_t * e_t
z = move X np.zeros_like(X[:, 0, :1]); for x_t = move X X[:, t] & m = sum nd->n1 x_t & p = carry
        n_t z & n_t = np.sin(p) + m & y_t = x_t * n_t; Y = y_t | X
    => dn_end = 0 * z; back dy_t_2 = dY[:, t] & dn_later = the previous dp, at first dn_end & s =
        ...d,...d->...1 dy_t_2 x_t & dn_t = dn_later + s & dp = dn_t * np.cos(p); dX = dy_t_2 *
        n_t + dn_t
z = move X np.zeros_like(X[:, 0]); for x_t = move X X[:, t] & u = sum ...d,d->...d x_t b & p =
        carry h_t z & h_t = np.sin(p) + u; Y = h_t | X b
    => dh_end = np.zeros_like(dY[:, 0]); back dy_t = dY[:, t] & dh_later = the previous dp, at
        first dh_end & dh_t = dy_t + dh_later & dp = dh_t * np.cos(p); dX = ...d,d->...d dh_t b;
        db = ...d,...d->d x_t dh_t
z = move X np.zeros_like(X[:, 0]); for x_t = move X X[:, t] & p = carry h_t z & q = sum nd,ntd->nt
        p X & r = sum nt,ntd->nd q X & h_t = np.sin(r / 99) + x_t; Y = h_t | X
    => dh_end = np.zeros_like(dY[:, 0]); back dy_t = dY[:, t] & dh_later = the previous dp, at
        first dh_end & dh_t = dy_t + dh_later & dr = dh_t * np.cos(r / 99) / 99 & dq = nd,ntd->nt
        dr X & dp = nt,ntd->nd dq X; dX_r = nht,nhd->ntd q dr; dX_q = nhd,nht->ntd p dq; dX = dX_r
        + dX_q + dh_t
z = move X np.zeros_like(X[:, 0]); for x_t = move X X[:, t] & p = carry h_t z & h_t = np.sin(b *
        p) * x_t; Y = h_t * 2 | X b
    => dH = 2 * dY; dh_end = np.zeros_like(dH[:, 0]); back dy_t = dH[:, t] & dh_later = the
        previous dp, at first dh_end & dh_t = dy_t + dh_later & dp = b * dh_t * x_t * np.cos(b *
        p); db_each = dh_t * p * x_t * np.cos(b * p); db = ...d->d db_each; dX = dh_t * np.sin(b *
        p)
z = move X np.zeros_like(X[:, 0]); for x_t = move X X[:, t] & p = carry h_t z & h_t = np.sin(b *
        p) * x_t; Y = 2 * h_t * X | X b
    => dH = 2 * dY * X; dh_end = np.zeros_like(dH[:, 0]); back dy_t = dH[:, t] & dh_later = the
        previous dp, at first dh_end & dh_t = dy_t + dh_later & dp = b * dh_t * x_t * np.cos(b *
        p); db_each = dh_t * p * x_t * np.cos(b * p); db = ...d->d db_each; dX = 2 * dY * h_t +
        dh_t * np.sin(b * p)
z = move X np.zeros_like(X[:, 0]); for x_t = move X X[:, t] & p = carry h_t z & h_t = np.sin(p) *
        x_t; m = sum ntd->n1d h_t; Y = m + 0 * X | X
    => dm = ...td->...1d dY; dH_one = dm; dH = np.broadcast_to(dH_one, h_t.shape); dh_end =
        np.zeros_like(dH[:, 0]); back dy_t = dH[:, t] & dh_later = the previous dp, at first
        dh_end & dh_t = dy_t + dh_later & dp = dh_t * x_t * np.cos(p); dX = dh_t * np.sin(p)
z = move X np.zeros_like(X[:, 0]); for x_t = move X X[:, t] & p = carry h_t z & c_t = p * x_t &
        h_t = np.sin(c_t); Y = h_t + c_t | X
    => dh_end = np.zeros_like(dY[:, 0]); back dy_t = dY[:, t] & dh_later = the previous dp, at
        first dh_end & dc_t = dh_later * np.cos(c_t) + dy_t * (1 + np.cos(c_t)) & dp = dc_t * x_t;
        dX = dc_t * p
z = move X np.zeros_like(X[:, 0]); for x_t = move X X[:, t] & p = carry h_t z & v = sum nd,de->ne
        x_t W & s_t = sum ne->n1 v & h_t = np.sin(p) * s_t; Y = h_t | X W
    => dh_end = np.zeros_like(dY[:, 0]); back dy_t = dY[:, t] & dh_later = the previous dp, at
        first dh_end & dh_t = dy_t + dh_later & dp = dh_t * s_t * np.cos(p); slope_s_t =
        np.sin(p); ds_t = ...d,...d->...1 dh_t slope_s_t; dv_one = ds_t; dv =
        np.broadcast_to(dv_one, v.shape); dX = nte,de->ntd dv W; dW = ntd,nte->de x_t dv
z = move X np.zeros_like(X[:, 0]); for x_t = move X X[:, t] & p = carry h_t z & g = sum nd->n1 p &
        h_t = np.where(x_t > 0, g, x_t); Y = h_t | X
    => dh_end = np.zeros_like(dY[:, 0]); back dy_t = dY[:, t] & dh_later = the previous dp, at
        first dh_end & dh_t = dy_t + dh_later & slope_g = np.where(x_t > 0, 1, 0.0) & dg =
        ...d,...d->...1 dh_t slope_g & dp_one = dg & dp = np.broadcast_to(dp_one, p.shape); dX =
        dh_t * np.where(x_t > 0, 0.0, 1)
z = move A A[:, :5]; for x_t = move X X[:, t] & p = carry h_t z & h_t = np.sin(p) * x_t; Y = h_t |
        X A
    => dh_end = np.zeros_like(dY[:, 0]); back dy_t = dY[:, t] & dh_later = the previous dp, at
        first dh_end & dh_t = dy_t + dh_later & dp = dh_t * x_t * np.cos(p); dz = dp[:, 0]; dA =
        dz of A[:, :5]; dX = dh_t * np.sin(p)
B = X * X; for b_t = move B B[:, t] & x_t = move X X[:, t] & h_t = np.sin(b_t) * x_t; Y = h_t | X
    => dX = dY * (np.sin(b_t) + 2 * x_t * X * np.cos(b_t))
B = X * X; z = move X np.zeros_like(X[:, 0]); for b_t = move B B[:, t] & x_t = move X X[:, t] & p
        = carry h_t z & h_t = np.sin(b_t * p) * x_t; Y = h_t | X
    => dh_end = np.zeros_like(dY[:, 0]); back dy_t = dY[:, t] & dh_later = the previous dp, at
        first dh_end & dh_t = dy_t + dh_later & dp = b_t * dh_t * x_t * np.cos(b_t * p); dX = dh_t
        * (np.sin(b_t * p) + 2 * p * x_t * X * np.cos(b_t * p))
z = move X np.zeros_like(X[:, 0]); for x_t = move X X[:, t] & p = carry h_t z & j = join p x_t & a
        = move j j[:, :5] & c = move j j[:, 5:] & h_t = np.sin(a) * c; Y = h_t | X
    => dh_end = np.zeros_like(dY[:, 0]); back dy_t = dY[:, t] & dh_later = the previous dp, at
        first dh_end & dh_t = dy_t + dh_later & dc = dh_t * np.sin(a) & da = c * dh_t * np.cos(a)
        & dj = np.concatenate([da, dc], axis=-1) & dp = dj[..., :p.shape[-1]] & dx_t = dj[...,
        p.shape[-1]:]; dX = dx_t
B = move X X[..., :2]; z = move X np.zeros_like(X[:, 0]); for x_t = move X X[:, t] & p = carry h_t
        z & h_t = np.sin(p) + x_t; C = move h_t h_t[..., :2]; Y = B * C | X
    => dC = dY * B; dH_C = dC of h_t[..., :2]; dh_end = np.zeros_like(dH_C[:, 0]); back dh_c_t =
        dH_C[:, t] & dh_later = the previous dp, at first dh_end & dh_t = dh_c_t + dh_later & dp =
        dh_t * np.cos(p); dB = dY * C; dX_B = dB of X[..., :2]; dX = dh_t + dX_B
m = max nd->n1 A; Y = A * m | A
    => dm = ...d,...d->...1 dY A; dA_m = dm where A is largest, else 0; dA = dY * m + dA_m
m = max nd->n1 A; B = np.exp(A - m); t_ = sum nd->n1 B; Y = B / t_ | A
    => s = ...d,...d->...1 dY Y; dA = Y * (dY - s)
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


class Stepped(Layer):
    """A layer that is its steps."""

    def __init__(self, steps):
        super().__init__()
        self.steps = lambda: Derivation(steps, [])


@pytest.mark.parametrize("row", re.split(r"\n(?! )", ROWS.strip()))
def test_each_rule_reads_like_this(row):
    text, _, wanted = " ".join(row.split()).partition(" => ")
    text, _, names = text.partition(" | ")
    forward = [read(line) for line in text.split("; ")]
    rng = np.random.default_rng(0)
    values = {n: rng.standard_normal(shape) for n, shape in SHAPES.items()}
    scope = ran(forward, values)
    back = reverse(forward, scope, names.split())
    assert "; ".join(map(shown, back)) == wanted
    scope["dY"] = rng.standard_normal(scope["Y"].shape)
    run.run(run.perform(back, scope, "backward"))
    for name in names.split() if back else ():
        step = 1e-6 * rng.standard_normal(SHAPES[name])
        up, down = (ran(forward, values | {name: values[name] + h * step})["Y"] for h in (1, -1))
        slope = (scope[f"d{name}"] * step).sum()
        assert slope == pytest.approx((scope["dY"] * (up - down)).sum() / 2, rel=1e-6, abs=1e-12)


def ran(forward, values):
    scope = Scope(Stepped(forward), **values)
    run.run(run.forward(scope))
    return scope
