"""The steps of a PyTorch module, noted while it runs on an example; imported with torch.

Sizes are numbers then, and whatever forward does with them simply runs. What depends on the
elements of a value, such as control flow, is refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from threading import RLock, get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from phitodeep.errors import ArgumentError

BATCH = 3  # samples of the example
SIZES = {  # what may be asked of a value; "__get__" is of attributes, such as shape
    *("__get__", "size", "dim", "numel", "__len__", "is_floating_point"),
    *("__repr__", "__format__"),
}
FREE = ("view", "reshape", "dropout")  # may be given the number of samples, or the mode
ALONE = RLock()  # one trace at a time, since it replaces the call of all modules


class TraceError(Exception):
    """What forward does depends on the elements of a value."""


@dataclass(eq=False)
class Call:
    """A step: the call of a function, or of a module that is not looked into.

    does            the function or the module; None for the outputs
    name            of the function, such as "relu" for relu_; "" if PyTorch has no such function
    path            of the module, or of the module that calls the function, with its name
    args, kwargs    what it is given, with the tensors `given`
    out             what it returns, with the tensors `made`
    text            what it does and reads, as text that is the same in another trace
    late            whether it reads a value that was overwritten
    """

    does: Any
    name: str
    path: str
    args: Any
    kwargs: Any
    given: list[Tensor]
    out: Any
    made: list[Tensor]
    text: list[str]
    late: bool


class Trace(TorchFunctionMode):
    """The calls of a module; `leaf` says which modules are not looked into."""

    def __init__(
        self, module: nn.Module, prefix: str, leaf: Callable[[nn.Module], bool],
        inputs: dict[str, Tensor],
    ) -> None:  # fmt: skip
        super().__init__()
        self.leaf, self.calls, self.thread = leaf, list[Call](), get_ident()
        self.paths = {part: f"{prefix}{path}" for path, part in module.named_modules()}
        self.held = {*module.parameters()}
        self.inside = [prefix.removesuffix(".")]  # the paths of the modules that run
        self.running = False  # whether a step runs: what it calls is not noted
        self.texts = {id(X): name for name, X in inputs.items()}  # of all tensors
        self.versions = {id(X): X._version for X in inputs.values()}  # of what depends on them

    def __torch_function__(self, does: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(does, "__name__", repr(does))
        known = any(getattr(home, name, None) is does for home in (torch, nn.functional, Tensor))
        name = name.strip("_")
        path = f"{self.inside[-1]}: {name}".removeprefix(": ")
        return self.note(does, does, name if known else "", path, args, kwargs or {})

    def call(self, run: Any, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Call a module, and note that, or what it calls.

        Leaves run in evaluation mode, so that no running statistics change.
        """
        if get_ident() != self.thread:
            return run(module, *args, **kwargs)
        path = self.paths.get(module, type(module).__name__)
        if self.running or self.leaf(module):
            if module in self.paths and not self.held.issuperset(module.parameters()):
                raise ArgumentError(
                    f"from_torch: the module at {path!r} runs with other parameters than its own, "
                    "as by torch.func.functional_call: no layer does that."
                )
            mode = module.training
            try:
                return self.note(module, run, "", path, args, kwargs, module.eval())
            finally:
                module.train(mode)
        self.inside.append(path)
        try:
            return run(module, *args, **kwargs)
        finally:
            self.inside.pop()

    def note(
        self, does: Any, run: Any, name: str, path: str, args: Any, kwargs: Any, *first: Any
    ) -> Any:
        """Run a step and note it, unless it is a part of another one."""
        if self.running:
            return run(*first, *args, **kwargs)
        self.running = True
        try:
            given = tensors((args, kwargs))
            before = {id(t): t._version for t in given}
            depends = before.keys() & self.versions.keys()
            late = any(before[i] != self.versions[i] for i in depends)
            seen = given if name.startswith(FREE) else parts((args, kwargs))
            text = [path, *map(self._text, seen)]
            out = run(*first, *args, **kwargs)
            if id(out) in before:  # it did nothing, or overwrote its input: a value of its own
                out = out.view_as(out)
            made = tensors(out)
            if made or does is None or (depends and out is None):
                self.texts |= {id(t): f"{len(self.calls)}.{k}" for k, t in enumerate(made)}
                self.versions |= {id(t): t._version for t in made if depends}
                call = Call(does, name, path, args, kwargs, given, out, made, text, late)
                self.calls.append(call)
            elif depends and getattr(does, "__name__", "") not in SIZES:
                raise TraceError(f"{path} of a value")
            return out
        finally:
            self.running = False

    def _text(self, part: Any) -> str:
        return self.texts.get(id(part), repr(id(part) if isinstance(part, Tensor) else part))


def parts(value: Any) -> list[Any]:
    """Return what is inside tuples, lists, dicts and slices."""
    if isinstance(value, dict):
        value = [*value.items()]
    if isinstance(value, slice):
        value = ("slice", value.start, value.stop, value.step)
    return [p for v in value for p in parts(v)] if isinstance(value, tuple | list) else [value]


def tensors(value: Any) -> list[Tensor]:
    return [part for part in parts(value) if isinstance(part, Tensor)]


def traced(
    module: nn.Module, prefix: str, leaf: Callable[[nn.Module], bool], inputs: dict[str, Tensor],
    training: bool,
) -> list[Call]:  # fmt: skip
    """Return the calls of a module in training or evaluation mode; the last is of its outputs."""
    for part in module.modules():
        part.training = training
    trace = Trace(module, prefix, leaf, inputs)
    with ALONE:
        run, fast = nn.Module.__call__, torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)  # it computes an encoder layer as one step
        nn.Module.__call__ = lambda *args, **kwargs: trace.call(run, *args, **kwargs)
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with trace:
                    out = module(*inputs.values())
                    trace.note(None, lambda out: out, "", "output", (out,), {})
                    return trace.calls
        finally:
            nn.Module.__call__ = run
            torch.backends.mha.set_fastpath_enabled(fast)


def alike(call: Call, other: Call, counts: tuple[int, int]) -> bool:
    """Return whether a step is the same in traces with so many samples."""
    if call.text != other.text or len(call.made) != len(other.made):
        return False
    for a, b in zip(call.made, other.made, strict=True):
        first, *others = list(zip(a.shape, b.shape, strict=False)) or [counts]
        merged = first[0] * counts[1] == first[1] * counts[0]
        if a.ndim != b.ndim or not (merged or first[0] == first[1]):
            return False
        if any(pair != counts and pair[0] != pair[1] for pair in others):
            return False
    return True
