"""A network of named values: layers that read and give them, in a fixed order.

Nothing is recorded while the network runs. It is wired once, before: its layers run in their
order, and back in the opposite one. Where a value is read several times, its gradient is the sum
of what its readers send back.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from keyword import iskeyword
from typing import Any, ClassVar, NamedTuple, Self, cast
from unicodedata import normalize

import numpy as np

from phitodeep.core.call import calling, current
from phitodeep.core.checks import check_flag
from phitodeep.core.frame import Frame
from phitodeep.core.types import Array, Shape, each, one
from phitodeep.derivations import containers as derived
from phitodeep.errors import ArgumentError, ArgumentTypeError, locate
from phitodeep.layers.base import Layer
from phitodeep.layers.containers import Around, Chain, Container

__all__ = ["Wired"]

RESERVED = re.compile(r"d?[XY]\d*|L|dP|np|erf|t")  # names in derivations
Names = tuple[str, ...]
Outputs = frozenset[str]
Use = tuple[Layer, Names, Names]  # a layer, the values that it reads, and those that it gives
Values = dict[str, Any]  # by name


class _Run(NamedTuple):
    """What runs at once: a layer, or a chain of layers whose values have one reader each."""

    part: Any  # a layer, whose own passes a chain made here has too
    whole: bool  # whether it is a chain made here, which is no layer of the network
    number: int  # of its first layer
    reads: Names
    gives: Names
    done: Names  # the values that nobody reads afterwards


class Wired(Container):
    """Layers that read values by name and give others, from several inputs to several outputs.

    Shapes: X_i, dX_i are (N, ...), one for each name in `takes`; Y_j, dY_j are (N, ...), one for
    each name in `returns`.

    takes      the names of the inputs, in the order of the arguments of `forward`
    uses       the layers in the order in which they run, each with the names of the
               values that it reads and gives: (layer, reads, gives)
    returns    the names of the outputs
    checkpoint True: forward keeps only the inputs, and backward runs it again: see Chain

    Backward. The layers run in the opposite order. A value v that several layers read reaches the
    outputs through all of them, so dv is the sum of the gradients that they return.
    Source: Werbos 1974; as a fixed list of layers and named values: Jia et al. 2014, "Caffe",
    arXiv:1408.5093, sec. 3.
    """

    inputs: Any = None  # the number of names in `takes` and in `returns`
    outputs: Any = None
    skips_dX = True
    refers_to: ClassVar[tuple[str, ...]] = ("_plan", "_planned_for")
    _plan: list[_Run] | None = None  # what runs
    _planned_for: Sequence[Layer] = ()  # the layers then
    _tokens: Any = False
    _learned: tuple[set[str], list[bool]] | None = None
    steps = derived.wired
    _constant: frozenset[str] = frozenset()
    _fixed = False  # whether the plan has other layers than the network, such as a Dense with ReLU

    def __init__(
        self, takes: Sequence[str], uses: Sequence[Any], returns: Sequence[str], *,
        checkpoint: bool = False,
    ) -> None:  # fmt: skip
        self.checkpoint = check_flag(checkpoint, f"{type(self).__name__} checkpoint")
        who = type(self).__name__
        layers, self.wires = [], list[tuple[Names, Names]]()
        for use in _listed(uses, f"{who}: uses", "[(Tanh(), ['a'], ['b'])]"):
            if not isinstance(use, list | tuple) or len(use) != 3:
                raise ArgumentTypeError(
                    f"{who}: a use is a layer, the names that it reads and those that it gives, "
                    f"such as (Tanh(), ['a'], ['b']), got {use!r}."
                )
            what = f"{who}: what {use[0]!r} reads and gives"
            reads, gives = (_listed(names, what) for names in use[1:])
            layers.append(use[0])
            self.wires.append((reads, gives))
        self.layers = self._held(layers)
        self.takes = _listed(takes, f"{who}: the inputs")
        self.returns = _listed(returns, f"{who}: the outputs")
        self.inputs, self.outputs = len(self.takes), len(self.returns)
        self._check_wiring()

    @property
    def uses(self) -> list[Use]:
        """The layers, each with the values that it reads and gives."""
        if len(self.layers) != len(self.wires):
            raise ArgumentError(
                f"{type(self).__name__} was wired with {len(self.wires)} layers, and now holds "
                f"{len(self.layers)}: make another with their wires, or replace a layer in place."
            )
        pairs = zip(self.layers, self.wires, strict=True)
        return [(layer, reads, gives) for layer, (reads, gives) in pairs]

    def values(self) -> list[str]:
        """Return the names of all values, in order."""
        return [*self.takes, *(name for _, gives in self.wires for name in gives)]

    def readers(self, name: str) -> int:
        """Return how many times layers read a value."""
        return sum(reads.count(name) for reads, _ in self.wires)

    def _outputs_by_layer(self) -> dict[Layer, Outputs]:
        found: dict[Layer, Outputs] = {}
        if self.outputs > 1:
            self._reached([frozenset([name]) for name in self.returns], found)
        return found

    def _reached(self, ends: Sequence[Outputs], found: dict[Layer, Outputs]) -> list[Outputs]:
        """Return which outputs depend on each input, and add the same of all layers to `found`.

        `ends` are those that depend on each value in `returns`, if this network is in another.
        """
        none = Outputs()
        reached = dict(zip(self.returns, ends, strict=True))
        for layer, reads, gives in reversed(self.uses):
            own = [reached.get(name, none) for name in gives]
            parts, before = [part for _, part in layer.walk()], [none.union(*own)] * len(reads)
            inside = layer
            while isinstance(inside, Around):
                inside = inside.layer
            if isinstance(inside, Wired):
                parts, before = [layer], inside._reached(own, found)
            for part in parts:
                for owner in [part, *[owner for owner, _ in part.tied.values()]]:
                    found[owner] = found.get(owner, none).union(*own)
            for name, outputs in zip(reads, before, strict=True):
                reached[name] = reached.get(name, none) | outputs
        return [reached.get(name, none) for name in self.takes]

    def _check_wiring(self) -> None:
        """Refuse names that cannot be names, values that do not exist yet, and unused ones."""
        who = type(self).__name__
        if not self.takes or not self.returns:
            raise ArgumentError(f"{who} needs at least one input and one output.")
        known: list[str] = []
        for name in self.takes:
            check_name(name, known, f"{who}: the input")
        for k, (layer, reads, gives) in enumerate(self.uses):
            at = f"{who}: layer {k}, {layer!r},"
            for name in reads:
                if name not in known:
                    raise ArgumentError(f"{at} reads {name!r}, which is not one of {_list(known)}.")
            for name in gives:
                check_name(name, known, f"{at} gives")
        for name in self.returns:
            if name not in known:
                raise ArgumentError(f"{who}: the output {name!r} is not one of {_list(known)}.")
        gradients = {f"d{name}": name for name in known}
        for k, (reads, _) in enumerate(self.wires):
            for i, name in enumerate(reads):
                gradients |= {f"d{name}_{k}": name, f"d{name}_{k}_{i}": name}
        if clash := [name for name in known if name in gradients]:
            raise ArgumentError(
                f"{who}: {clash[0]!r} is the name of a gradient, that of {gradients[clash[0]]!r}, "
                "in the derivation: give one of the two values another name."
            )
        read = {name for reads, _ in self.wires for name in reads} | {*self.returns}
        sources: list[tuple[Names, str]] = [((name,), "an input") for name in self.takes]
        sources += [(u[2], f"from layer {k}, {u[0]!r}") for k, u in enumerate(self.uses)]
        for names, source in sources:
            if names and read.isdisjoint(names):  # of several values, others may be left unread
                raise ArgumentError(
                    f"{who}: nobody reads {_list(names)}, {source}: go on from it, as in "
                    f".at({names[0]!r}), merge it, make it an output, or leave it out."
                )
        if twice := [name for name, n in Counter(self.returns).items() if n > 1]:
            raise ArgumentError(f"{who}: {_list(twice)} is an output twice.")

    def create(self, *shapes: Shape) -> Any:
        given: Values = dict(zip(self.takes, shapes, strict=True))
        for k, (layer, reads, gives) in enumerate(self.uses):
            with self._at(k):
                outs = layer.build(one([given[n] for n in reads], layer.inputs == 1 == len(reads)))
            several = (outs,) if layer.outputs == 1 else outs
            if len(several) != len(gives):
                raise ArgumentError(
                    f"{self._place(k)} gives {len(several)} values, and {len(gives)} have names."
                )
            given.update(zip(gives, several, strict=True))
        self._plan = None
        return one([given[name] for name in self.returns], self.outputs == 1)

    def _place(self, k: int) -> str:
        reads, gives = map(_list, self.wires[k])
        return f"layer {k} of {type(self).__name__}, which reads {reads} and gives {gives}"

    # --- both passes -------------------------------------------------------------------------

    def forward(self, *Xs: Array) -> Any:
        return self._through(*Xs)

    def backward(self, *dYs: Array) -> Any:
        return self._back_through(*dYs)

    def _forward(self, *Xs: Array) -> Any:
        mask = current().mask
        values: Values = dict(zip(self.takes, Xs, strict=True))
        masks = None if mask is None else self._masks(*each(mask))
        for run in self._runs():
            A = [values[name] for name in run.reads]
            try:
                if masks is None:
                    Y = run.part._forward(A[0]) if run.whole else run.part.forward(*A)
                else:
                    own = [masks[name] for name in run.reads]
                    with calling(mask=one(own, run.part.inputs == 1)):
                        Y = run.part._forward(A[0]) if run.whole else run.part.forward(*A)
            except Exception as error:
                if not run.whole:
                    locate(error, self._place(run.number))
                raise
            values.update(zip(run.gives, each(Y), strict=True))
            for name in run.done:
                del values[name]
        return one([values[name] for name in self.returns], self.outputs == 1)

    def _backward(self, *dYs: Array) -> Any:
        runs, all_dX = self._runs(), current().needs_dX
        learning, learns = self._learning(runs)
        grads: Values = dict(zip(self.returns, dYs, strict=True))
        for i in range(len(runs) - 1, -1, -1):
            run = runs[i]
            given = [grads.pop(name, None) for name in run.gives]
            needs_dX = all_dX or not learning.isdisjoint(run.reads)
            if all(d is None for d in given) or not (needs_dX or learns[i]):
                continue
            try:
                with calling(needs_dX=needs_dX):
                    dXs = self._back(run, given)
            except Exception as error:
                if not run.whole:
                    locate(error, self._place(run.number))
                raise
            for name, d in zip(run.reads, dXs, strict=True):
                if d is None or not (all_dX or name in learning):
                    continue
                if name not in grads:
                    grads[name] = d
                else:  # never into d, which may be dY itself, or a view of it
                    out = self.buffer(f"d{name}", d.shape, d.dtype)
                    grads[name] = np.add(grads[name], d, out=out)
        if not all_dX:
            return None
        return one([grads.get(name) for name in self.takes], self.inputs == 1)

    def _learning(self, runs: list[_Run]) -> tuple[set[str], list[bool]]:
        """Return the values that depend on something that learns, and which parts learn."""
        flags = [
            any(layer._learns() for layer in (run.part.layers if run.whole else [run.part]))
            for run in runs
        ]
        if self._learned is None or self._learned[1] != flags:
            values: set[str] = set()
            for run, flag in zip(runs, flags, strict=True):
                if flag or not values.isdisjoint(run.reads):
                    values.update(run.gives)
            self._learned = values, flags
        return self._learned

    def _back(self, run: _Run, given: list[Any]) -> tuple[Any, ...]:
        """Return the gradient of each value that a part reads; outputs without one have 0."""
        part = run.part
        if run.whole:
            return (part._backward(given[0]),)
        if any(d is None for d in given):
            outs = part._frame.output
            given = [np.zeros(*out) if d is None else d for d, out in zip(given, outs, strict=True)]
        dX = part.backward(*given)
        return dX if isinstance(dX, tuple) else (dX,) * len(run.reads) if dX is None else (dX,)

    # --- the order in which parts run --------------------------------------------------------

    def _runs(self) -> list[_Run]:
        """Return what runs, in order, until the layers change."""
        if self._plan is None or not (self._fixed or self._planned_for == self.layers):
            self._plan, self._learned = self._planned_runs(), None
            self._planned_for, self._tokens = [*self.layers], self._read_as_tokens()
        return self._plan

    def _planned_runs(self) -> list[_Run]:
        readers = Counter(name for reads, _ in self.wires for name in reads)
        readers.update(self.returns)
        groups: list[list[int]] = []
        for k, (layer, reads, _) in enumerate(self.uses):
            before = groups[-1][-1] if groups else None
            follows = (
                before is not None
                and (layer.inputs, layer.outputs) == (1, 1)
                and (self.layers[before].inputs, self.layers[before].outputs) == (1, 1)
                and reads == self.wires[before][1]
                and readers[reads[0]] == 1
                and reads[0] not in self.returns
            )
            groups[-1].append(k) if follows else groups.append([k])
        last = {name: i for i, ks in enumerate(groups) for name in self.wires[ks[0]][0]}
        runs = []
        for i, ks in enumerate(groups):
            reads, gives = self.wires[ks[0]][0], self.wires[ks[-1]][1]
            done = tuple([n for n in {*reads, *gives} - {*self.returns} if last.get(n, i) == i])
            part = self.layers[ks[0]] if len(ks) == 1 else self._chain(ks)
            runs.append(_Run(part, len(ks) > 1, ks[0], reads, gives, done))
        return runs

    def _chain(self, numbers: list[int]) -> Chain:
        chain = _Stretch()
        chain.layers, chain._numbers = [self.layers[k] for k in numbers], numbers
        chain.places = {k: self._place(k) for k in numbers}
        return chain

    def _with_stretches(self, change: Callable[[Chain, str], Chain]) -> Container:
        """Return a network of the same layers, with each stretch, which gives a value, changed.

        A layer that runs alone is a stretch of one. A network that is one stretch is a chain.
        """
        runs = self._runs()
        other = Layer._replica(self)
        other._plan = []
        for run in runs:
            chain = run.part
            if not run.whole:
                if (run.part.inputs, run.part.outputs) != (1, 1):
                    other._plan.append(run)
                    continue
                chain = self._chain([run.number])
            changed = change(cast(Chain, chain), run.gives[0])
            other._plan.append(run if changed is chain else run._replace(part=changed, whole=True))
        if len(runs) == self.outputs == 1 and other._plan[0].whole and not self.checkpoint:
            return self._alone(other._plan[0].part)
        other._fixed = True
        return other

    def _alone(self, chain: Chain) -> Chain:
        """Return the chain, which runs in place of this network."""
        vars(chain).update(_original=self._original, dtype=self.dtype)
        chain.input_shape, chain.output_shape = self.input_shape, chain.layers[-1].output_shape
        return chain

    def _replica(self, frames: dict[Layer, Frame] | None = None) -> Self:
        twin = super()._replica(frames)
        twin._plan = twin._learned = None
        if self._fixed:
            twin._plan = [run._replace(part=run.part._replica(frames)) for run in self._runs()]
        return twin

    def children(self) -> dict[str, Layer]:
        if not self._fixed:
            return super().children()
        found: dict[str, Layer] = {}
        for run in self._runs():
            found |= run.part.children() if run.whole else {f"layers.{run.number}": run.part}
        return found

    def split_at(self, given: Names) -> tuple[Wired, Wired]:
        """Return what depends on these inputs only, and the rest, which reads some of its values.

        Both consist of this network's layers. The rest takes the other inputs, then those values.
        """
        fixed, parts = {*given}, (list[Use](), list[Use]())
        for layer, reads, gives in self.uses:
            later = not fixed.issuperset(reads)
            parts[later].append((layer, reads, gives))
            fixed.update(() if later else gives)
        read = [name for _, reads, _ in parts[1] for name in reads] + [*self.returns]
        passed = tuple(dict.fromkeys(name for name in read if name in fixed))
        others = tuple([name for name in self.takes if name not in given])
        first = self._of(given, parts[0], passed)
        return first, self._of((*others, *passed), parts[1], self.returns)

    def _of(self, takes: Names, uses: list[Use], returns: Names) -> Wired:
        """A network of some of these layers, with shapes as they are here."""
        other = Layer._replica(self)
        other.layers, other.wires = [use[0] for use in uses], [use[1:] for use in uses]
        other.takes, other.returns, other._plan = takes, returns, None
        other.inputs, other.outputs = len(takes), len(returns)
        other._constant = frozenset(takes) - {*self.takes}  # values that do not grow with a text
        shapes: Values = dict(zip(self.takes, self._ins(), strict=False))
        for layer, _, gives in self.uses:
            shapes |= zip(gives, layer._outs(), strict=False)
        other.input_shape = one([shapes.get(name) for name in takes], len(takes) == 1)
        other.output_shape = one([shapes.get(name) for name in returns], len(returns) == 1)
        return other

    @property
    def time_steps(self) -> str:
        found = set()
        for layer, reads, _ in self.uses:
            whole = getattr(layer, "reads_whole", None)
            constant = whole is not None and reads[whole] in self._constant
            found.add("independent" if constant else layer.time_steps)
        return next((how for how in ("joined", "remembered") if how in found), "independent")

    @property
    def _last(self) -> Layer | None:
        ends = {name: layer for layer, _, gives in self.uses for name in gives}
        return ends.get(self.returns[0]) if self.outputs == 1 else None

    @property
    def gives(self) -> Any:
        return "" if self._last is None else self._last.gives

    # --- masks and declarations --------------------------------------------------------------

    def _masks(self, *masks: Array | None) -> dict[str, Array | None]:
        """Return the mask of each value, by name; None if it has no steps or no mask."""
        found = dict(zip(self.takes, masks, strict=True))
        for k, (layer, reads, gives) in enumerate(self.uses):
            given = [found[name] for name in reads]
            with self._at(k):
                out = None if all(m is None for m in given) else layer.compute_mask(*given)
            outs = (out,) if layer.outputs == 1 else out or (None,) * len(gives)
            found.update(zip(gives, outs, strict=True))
        return found

    def compute_mask(self, *masks: Any) -> Any:
        found = self._masks(*masks)
        return one([found[name] for name in self.returns], self.outputs == 1)

    @property
    def takes_tokens(self) -> Any:
        self._runs()
        return self._tokens

    def _read_as_tokens(self) -> Any:
        """Return whether every layer that reads an input takes it as tokens, for each input."""
        kinds: dict[str, list[bool]] = {name: [] for name in self.takes}
        for layer, reads, _ in self.uses:
            tokens = each(layer.takes_tokens)
            for i, name in enumerate(reads):
                if name in kinds:
                    kinds[name].append(tokens[i] if i < len(tokens) else False)
        return one([bool(found) and all(found) for found in kinds.values()], self.inputs == 1)


class _Stretch(Chain, registered=False):
    """A stretch of layers in a network, which run as a chain."""

    places: dict[int, str]  # of its layers in the network, by their numbers there

    def _place(self, i: int) -> str:
        return self.places[self._number(i)]


def _list(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def _listed(given: Any, what: str, example: str = "['a']") -> tuple[Any, ...]:
    """Return what a list holds; a text is not a list of names."""
    if not isinstance(given, list | tuple):
        raise ArgumentTypeError(f"{what} must be in lists, such as {example}, got {given!r}.")
    return tuple(given)


def check_name(name: Any, known: list[str], what: str) -> None:
    """Refuse what cannot be the name of a value, and a name that is taken."""
    if not isinstance(name, str):
        raise ArgumentTypeError(f"{what} {name!r}: the name of a value is text.")
    if not name.isidentifier() or iskeyword(name) or normalize("NFKC", name) != name:
        raise ArgumentError(
            f"{what} {name!r}: the name of a value must be a Python name and no keyword, such as "
            "'left_2'."
        )
    if RESERVED.fullmatch(name):
        raise ArgumentError(f"{what} {name!r}: derivations use it already, so choose another.")
    if name in known:
        raise ArgumentError(f"{what} {name!r}: another value has this name, so choose another.")
    known.append(name)
