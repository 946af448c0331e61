"""How other authors' layers are written as ONNX: see `exports`.

`phitodeep/exchange/correspondence.py` says how each layer of phitodeep is written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from phitodeep.exchange.correspondence import declare
from phitodeep.exchange.onnx.write.graph import Form, Graph, Value
from phitodeep.layers.base import Layer

F = TypeVar("F", bound=Form)


def exports(kind: type[Layer]) -> Callable[[F], F]:
    """Declare how a class of layers is written as ONNX.

        class Scale(Layer):
            s = Param()

        @exports(Scale)
        def scale(graph, layer, x):
            return graph.node("Mul", x, graph.param(layer, "s"))

    The function adds nodes to the graph and returns the value of Y. x is X, with its axes in our
    order. `graph.node(operator, *inputs, **attributes)` adds a standard operator of ONNX, whose
    inputs are values, NumPy arrays, numbers or lists of integers; `graph.param` gives a parameter
    or a state; `graph.opset` is the version. A container writes a layer inside it with
    `graph.add(layer, x)`.
    """
    declared = declare(kind, "onnx", "exports")

    def declare_form(form: F) -> F:
        def in_our_order(g: Graph, layer: Any, *xs: Value) -> Any:
            return form(g, layer, *map(g.ordered, xs))

        declared(in_our_order)
        return form

    return declare_form
