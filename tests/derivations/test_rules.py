"""The rules of derive, one by one: what they write is what a person would write."""

import re

import numpy as np
import pytest

from phitodeep.derivations.derive.algebra import directional, parse, quotient, show, slope
from phitodeep.derivations.derive.known import Known
from phitodeep.derivations.derive.moves import undone
from phitodeep.derivations.language.step import FUNCTIONS, Arrange, Let
from phitodeep.errors import DerivationError

SHOWN = """
(X + 1) * (X + 1) - 2 * (X + 1) ** 2 => -(X + 1) ** 2
X - X => 0   X + X => 2 * X   2 * X - X / 2 => 3 * X / 2   X * X * Y => X ** 2 * Y   X / X => 1
(X + 1) * (X + 1) => (X + 1) ** 2   (X + 1) * (Y + 1) => (Y + 1) * (X + 1)
(X + 1) ** 2 / (X + 1) => (X + 1)   2 * (X + 1) => 2 * X + 2   -X - Y => -X - Y
-(X - Y) => Y - X   Y - 3 * X => Y - 3 * X   X * Y + X * Z => X * (Y + Z)
X * Y + X * Z + 1 => 1 + X * (Y + Z)   X / Y - Z / Y => (X - Z) / Y   (2 * X) ** 3 => 8 * X ** 3
(3 * X) ** 0.5 => (3 * X) ** 0.5   (X * Y) ** 0.5 => X ** 0.5 * Y ** 0.5
(X / 3) ** -2 => 9 / X ** 2   np.sqrt(X) ** 2 => X   np.sqrt(X) ** 3 => X * np.sqrt(X)
np.sqrt(X + 1) ** -4 => 1 / (X + 1) ** 2   X * 0.1 => 0.1 * X
X * 0.30000000000000004 => 0.30000000000000004 * X   X / 3 * 2 => 2 * X / 3
X ** -1.5 => 1 / X ** 1.5   1 / (X * Y) => 1 / X / Y   X * np.pi * 2 => 2 * X * np.pi
X * np.where(X > 0, 1, 0.0) => np.where(X > 0, X, 0)
2 * X * np.where(X > 0, 1, 0.0) / Y => np.where(X > 0, 2 * X / Y, 0)
np.where(X > 0, 1, 0.0) => np.where(X > 0, 1, 0.0)
X * np.where(X > 0, 1, 0.0) ** 2 => X * np.where(X > 0, 1, 0.0) ** 2   b * A * dA => b * dA * A
np.exp(X * 2 - X) => np.exp(X)   0 * X => 0   X ** 0 => 1   X < Y => (X < Y)
dA * (X + Y) / (X + Y) ** 2 => dA / (X + Y)   X ** 0.5 + Y => X ** 0.5 + Y   X / 0 => X / 0
X / 4096 => X / 4096   X / 4097 => 0.000244081034903588 * X
X * 1e20 => 1e+20 * X   X * 0.0001220703125 => 0.0001220703125 * X
X * 1000000000000000 => 1000000000000000 * X   X * 1000000000000001 => 1000000000000001.0 * X
np.exp(X) * Y + np.exp(X) * Z + 1 => Y * np.exp(X) + Z * np.exp(X) + 1
Y / X + Z / X + Y * Z => Z / X + Y * (1 / X + Z)
"""
SLOPES = """
X ** 3 => 3 * X ** 2   X ** -2 => -2 / X ** 3   np.tanh(2 * X) => 2 - 2 * np.tanh(2 * X) ** 2
X / (1 + X) => (1 - X / (1 + X)) / (1 + X)   np.where(X > 0, X, Y) => np.where(X > 0, 1, 0.0)
np.where(X > 0, Y, X) => np.where(X > 0, 0.0, 1)   np.maximum(X, Y) => np.where(X > Y, 1, 0.0)
np.minimum(X, 2 * X) => np.where(X > 2 * X, 2, 1)
np.clip(X, -1, 1) => np.where((-1 < X) & (X < 1), 1, 0.0)
np.clip(0, X, 1) => np.where((X < 0) & (0 < 1), 0.0, np.where((0 <= X) & (X < 1), 1, 0.0))
np.where(X > Y, X, X) => np.where(X > Y, 1, 1)   (1 + X) ** 1.2346 => 1.2346 * (1 + X) ** 0.2346
np.clip(Y, X, 1) => np.where((X < Y) & (Y < 1), 0.0, np.where((Y <= X) & (X < 1), 1, 0.0))
np.clip(Y, 0, X) => np.where((0 < Y) & (Y < X), 0.0, np.where((Y <= 0) & (0 < X), 0.0, 1))
np.logaddexp(X, Y) => np.exp(X - np.logaddexp(X, Y))   X ** Y => Y * (X ** (Y - 1))
Y ** X => np.log(Y) * (Y ** X)   2 ** X => (2 ** X) * np.log(2)
(X * X) ** X => 2 * X ** 2 * ((X * X) ** (X - 1)) + ((X * X) ** X) * np.log(X ** 2)
(X + Y) ** 2 => 2 * (X + Y)   X < Y => 0   np.pi * X => np.pi   np.where(X < 0, -1, 1) => 0
np.exp(Y) => 0   np.exp(-X) * X => np.exp(-X) * (1 - X)
sigmoid(X) => sigmoid(X) * (1 - sigmoid(X))   np.sign(X) * X => np.sign(X)
(1 + X) ** 0.5 => 1 / 2 / (1 + X) ** 0.5   (X + 2 * Y) * (X - Y) => (X - Y) + X + 2 * Y
np.exp(X) => np.exp(X)   np.expm1(X) => np.expm1(X) + 1
np.exp2(X) => 0.6931471805599453 * np.exp2(X)   np.log(X) => 1 / X   np.log1p(X) => 1 / (1 + X)
np.tanh(X) => 1 - np.tanh(X) ** 2   np.sin(X) => np.cos(X)   np.cos(X) => -np.sin(X)
np.tan(X) => 1 + np.tan(X) ** 2   np.sinh(X) => np.cosh(X)   np.cosh(X) => np.sinh(X)
np.arctan(X) => 1 / (1 + X ** 2)   np.sqrt(X) => 1 / 2 / np.sqrt(X)   np.square(X) => 2 * X
np.abs(X) => np.sign(X)   np.sign(X) => 0   np.signbit(X) => 0   np.int64(X) => 0
np.floor(X) => 0   np.ceil(X) => 0   np.round(X) => 0
"""
QUOTIENTS = """
6 * X * Y | 2 * X => 3 * Y   X | X => 1   X | Y => 0   X * Y + X | Y + 1 => X   X | X - X => 0
X * Y + X | Y + 2 => 0   X / Y | X => 0   X / 2 | 4 => X / 8   Y + X | 3 => 0   X * X | X => X
"""
TANGENTS = """
X * Y => tX * Y + tY * X   X / Y => (tX - tY * X / Y) / Y
np.maximum(X, Y) => np.where(X > Y, tX, tY)
X ** Y => tX * Y * (X ** (Y - 1)) + tY * np.log(X) * (X ** Y)
np.clip(X, Y, Z) => np.where((Y < X) & (X < Z), tX, np.where((X <= Y) & (Y < Z), tY, 0.0))
np.where(X > Y, X, Y) => np.where(X > Y, tX, tY)
np.logaddexp(X, Y) => tX * np.exp(X - np.logaddexp(X, Y)) + tY * np.exp(Y - np.logaddexp(X, Y))
"""
KNOWN = """
s = 1 / (1 + 2 * np.exp(-X)) | np.exp(-X) * dA => dA * np.exp(-X)
s = 1 / (1 + a * e) | a * dA => a * dA   s = 1 / (1 + e ** 2) | e * dA => dA * e
E = np.exp(Z) | np.exp(Z) * dA => dA * E   E = np.exp(Z) | dA / np.exp(Z) ** 2 => dA / E ** 2
Y = E / total | E * dA / total => dA * Y   Y = E / total | E ** 2 * dA / total ** 2 => dA * Y ** 2
Y = E / total | E * dA => dA * E   Y = E / total | total / E => total / E
Y = 2 * E | 2 * E => 2 * E   Y = X + 1 | 2 * (X + 1) => 2 * X + 2   r = 1 / s | 1 / s => r
r = 1 / s | s * dA => dA / r   r = X | X * dA => dA * X
r = 1 / np.sqrt(v) | np.sqrt(v) * dA => dA / r
r = 1 / np.sqrt(v) | dA / np.sqrt(v) ** 3 => dA * r ** 3
e = np.exp(-X); s = 1 / (1 + np.exp(-X)) | np.exp(-X) * dA => dA * (1 / s - 1)
s = 1 / (1 + e) | (1 + e) * dA => dA / s
s = 1 / (1 + np.exp(-X)) | np.exp(-X) * dA => dA * (1 / s - 1)
s = 1 / (1 + np.exp(-X)) | np.exp(-X) ** 2 * dA => dA * np.exp(-X) ** 2
s = 1 / (2 + np.exp(-X)) | np.exp(-X) * dA => dA * np.exp(-X)
A = X * W; B = A * W | X * W * W => A * W   A = X * W; B = X * X | X ** 3 * W => A * X ** 2
h = np.tanh(u) | 1 - np.tanh(u) ** 2 => 1 - h ** 2   h = -np.tanh(u) | np.tanh(u) => np.tanh(u)
h = np.tanh(u) ** 2 | np.tanh(u) ** 2 * dA => dA * np.tanh(u) ** 2
"""
UNDONE = """
X.reshape(X.shape[0], -1) => dY.reshape(X.shape)   np.squeeze(X, 1) => dY.reshape(X.shape)
np.expand_dims(X, -1) => dY.reshape(X.shape)   np.swapaxes(X, 1, -1) => np.swapaxes(dY, 1, -1)
X.swapaxes(1, 2) => np.swapaxes(dY, 1, 2)   np.flip(X, 1) => np.flip(dY, 1)
X.transpose(1, 2, 0) => dY.transpose(2, 0, 1)   X.transpose(-1, 0, 1) => dY.transpose(1, 2, 0)
np.transpose(X, (1, 0)) => -   np.transpose(X, (1, 2, 0)) => -
np.roll(X, 2, axis=1) => np.roll(dY, -2, axis=1)   np.roll(X, -2, 1) => np.roll(dY, 2, 1)
np.roll(X, n, axis=1) => -   np.roll(X, (1, 2), axis=(0, 1)) => -
np.pad(X, ((0, 0), (1, 2), (3, 0))) => dY[:, 1:-2, 3:]   np.pad(X, 1) => -
np.pad(X, (1, 2)) => -   np.pad(X, ((1, 2),), mode='edge') => -
X[:, None] => dY.reshape(X.shape)   X[..., None, :] => dY.reshape(X.shape)
X[None] => dY.reshape(X.shape)   X.T => dY.T   X[:, ::-1] => dY[:, ::-1]
X[..., ::-1] => dY[..., ::-1]   X[::-1, :] => dY[::-1, :]   X[..., ::-1, :] => dY[..., ::-1, :]
X[:, 1:] => -   X[:, [0, 0]] => -   np.repeat(X, 2, axis=1) => -   np.moveaxis(X, 1, 2) => -
np.roll(X.T, 1, axis=0) => np.roll(dY, -1, axis=0).T   np.broadcast_to(X, X.shape) => -
X.T.reshape(3, 4)[:, None] => dY.reshape(X.T.reshape(3, 4).shape).reshape(X.T.shape).T
np.swapaxes(X[:, 1:], 0, 1) => -   np.tile(X, 2) => -   X.shape[0] * X => -
"""


def rows(table):
    return [row.split(" => ") for row in re.split("   |\n", table.strip())]


def test_expressions_are_written_as_a_person_would():
    for code, wanted in rows(SHOWN):
        assert show(parse(code)) == wanted, code


def test_a_quotient_is_a_product_of_names():
    for code, wanted in rows(QUOTIENTS):
        assert show(quotient(*map(parse, code.split(" | ")))) == wanted, code


def at(code, X):
    Y = np.array([0.3, 0.8, 1.7])
    return eval(code, dict(FUNCTIONS), {"X": X, "Y": Y, "Z": 3, "tX": 2, "tY": 5})


def test_slopes_are_those_of_calculus():
    X = np.array([1.1, 0.4, 0.9])
    for code, wanted in rows(SLOPES):
        found = show(slope(parse(code), "X"))
        assert found == wanted, code
        difference = (at(code, X + 1e-6) * 1.0 - at(code, X - 1e-6)) / 2e-6
        np.testing.assert_allclose(at(found, X) + 0 * X, difference, rtol=1e-7, atol=1e-8)
    for code, wanted in rows(TANGENTS):
        moves = {"X": parse("tX"), "Y": parse("tY")}
        assert show(directional(parse(code), moves)) == wanted, code
    with pytest.raises(DerivationError, match=r"no derivative is known for np\.sinc: add it"):
        slope(parse("np.sinc(X)"), "X")


def test_what_the_forward_pass_computed_is_read():
    for given, wanted in rows(KNOWN):
        lets, _, code = given.partition(" | ")
        known = Known([Let(*let.split(" = ")) for let in lets.split("; ")])
        assert show(known.shorten(parse(code))) == wanted, given


def test_moves_are_undone_by_moves():
    rng = np.random.default_rng(0)
    for code, wanted in rows(UNDONE):
        found = undone(Arrange("Y", code, "X", ""), "dY")
        assert found == wanted.strip("-"), code
        for shape in [(3, 4), (2, 3, 4)] if found else ():
            X = rng.standard_normal(shape)
            try:
                Y = eval(code, {"np": np, "X": X})
            except (ValueError, IndexError):
                continue
            np.testing.assert_array_equal(eval(found, {"np": np, "X": X, "dY": Y}), X)
