"""The graph of a PyTorch module, traced by torch.fx; this file is imported with torch.

A plain trace knows no sizes, and stops where forward asks for one. This one computes each value for
an example as well, so that sizes are numbers; control flow that depends on values is still refused.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

BATCH = 3  # samples of the example


class Root(nn.Module):
    """The module to trace."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *Xs: Any) -> Any:
        return self.module(*Xs)


class Sized(fx.Proxy):
    """A stand-in for a value that knows its sizes."""

    @property
    def value(self) -> Any:
        return self.node.meta["value"]

    shape = property(lambda self: self.value.shape)
    ndim = property(lambda self: self.value.ndim)
    dtype = property(lambda self: self.value.dtype)
    device = property(lambda self: self.value.device)
    is_nested = property(lambda self: self.value.is_nested)

    def size(self, dim: int | None = None) -> Any:
        return self.value.shape if dim is None else self.value.shape[dim]

    def dim(self) -> int:
        return self.value.ndim

    def numel(self) -> int:
        return self.value.numel()

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Any:
        known = isinstance(self.value, tuple | list)
        return iter([self[i] for i in range(len(self))]) if known else super().__iter__()

    def __iadd__(self, other: Any) -> Any:
        return self._in_place(operator.iadd, other)

    def __imul__(self, other: Any) -> Any:
        return self._in_place(operator.imul, other)

    def __setitem__(self, *given: Any) -> None:
        self._in_place(operator.setitem, *given)

    def _in_place(self, step: Callable[..., Any], *given: Any) -> Any:
        """Note a step that overwrites the value; a plain trace would note one that does not."""
        return self.tracer.create_proxy("call_function", step, (self, *given), {})


class Tracer(fx.Tracer):
    """Traces a module for examples by name; `leaf` says which modules are not looked into."""

    def __init__(self, examples: dict[str, torch.Tensor], leaf: Callable[[Any], bool]) -> None:
        super().__init__(autowrap_modules=())
        self.examples, self.leaf = examples, leaf
        self.computing = False  # the value of a step: nothing is traced meanwhile

    def create_args_for_root(self, root_fn: Any, *_: Any, **__: Any) -> Any:
        inputs = [self.create_proxy("placeholder", name, (), {}) for name in self.examples]
        return root_fn, [self.root, *inputs]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return self.leaf(m)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return Sized(node, self)

    def create_proxy(self, kind: str, *args: Any, **kwargs: Any) -> fx.Proxy:
        made = super().create_proxy(kind, *args, **kwargs)
        if kind != "output":
            self.computing = True
            try:
                made.node.meta["value"] = self._value(made.node)
            finally:
                self.computing = False
        return made

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        if self.computing:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: Any) -> Any:
        if self.computing:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def _known(self, node: fx.Node) -> Any:
        if "value" not in node.meta:  # a tensor that forward made of none of its inputs
            node.meta["value"] = operator.attrgetter(str(node.target))(self.root)
        return node.meta["value"]

    def _value(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return self.examples[str(node.target)]
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), self._known)
        if node.op == "get_attr":
            return operator.attrgetter(str(node.target))(self.root)
        if node.op == "call_module":
            return self.root.get_submodule(str(node.target))(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        return node.target(*args, **kwargs)


def graph_of(
    module: nn.Module, examples: dict[str, Any], leaf: Callable[[nn.Module], bool], training: bool
) -> tuple[fx.Graph, Root]:
    """Return the graph of a module in training or evaluation mode, and what it was traced on.

    Leaves run in evaluation mode, so that no running statistics change.
    """
    root = Root(module)
    for part in root.modules():
        part.training = training and not leaf(part)
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # it computes a whole encoder layer as one step
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Tracer(examples, leaf).trace(root), root
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
