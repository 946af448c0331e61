"""Write objects as plain JSON values and read them back: `get_config` and `from_config`.

Every layer, loss, optimizer, initializer, schedule, metric and callback returns its constructor's
arguments by name, as values that `json.dumps` accepts:

    config = model.get_config()
    again = Sequential.from_config(json.loads(json.dumps(config)))

None, booleans, numbers, strings, lists and dicts with string keys are written unchanged. NumPy
numbers become Python numbers; dtypes and paths become strings. A dict with one of these keys stands
for another value:

    {"layer": "Dense", "config": {...}}        an object, by kind and class: see `KINDS`
    {"ref": 1}                                 the layer that has "id": 1 next to its class
    {"function": "name"}                       a function registered with `register`
    {"enum": "InitType.NORMAL"}                a member of an enum
    {"tuple": [2, 1]}                          a tuple
    {"pairs": [[0, 1.5], [1, 2.0]]}            a dict whose keys are not plain strings
    {"array": [1.0, 2.0], "dtype": "float32"}  a small array
    {"float": "inf"}                           infinity or nan, which JSON does not have

Anything else, such as a lambda, is refused when it is written. Reading imports no modules and
runs no code except the constructors of registered classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from phitodeep.core.config.reading import check_mapping, restored
from phitodeep.core.config.registry import KINDS, TAGS, Writable, register
from phitodeep.core.config.writing import alike, being_written, outline, writes_values, written
from phitodeep.core.types import constructors, parameters
from phitodeep.errors import ArgumentError, ArgumentTypeError, did_you_mean

__all__ = [
    "KINDS", "TAGS", "Configurable", "alike", "being_written", "check_mapping", "outline",
    "register", "restored", "written",
]  # fmt: skip


class Configurable(Writable):
    """An object that `get_config` writes as plain values and `from_config` creates again.

    A class that keeps each constructor argument as an attribute of the same name needs no code. If
    it keeps an argument under another name, it declares that name in `kept_as`. Any other class
    overrides `get_config` to return the arguments by name, as any values that can be written.
    """

    config_kind: ClassVar[str] = "object"  # one of KINDS
    kept_as: ClassVar[Mapping[str, str]] = {}  # argument -> attribute, where the names differ

    def __init_subclass__(cls, registered: bool = True, **kwargs: Any) -> None:
        """Register a class of phitodeep, unless it is only the base of others."""
        super().__init_subclass__(**kwargs)
        if "get_config" in vars(cls):
            cls.get_config = writes_values(vars(cls)["get_config"])  # type: ignore[method-assign]  # wrapped once, here
        ours = cls.__module__.startswith("phitodeep.") and not cls.__name__.startswith("_")
        if ours and registered:
            register(cls)

    @writes_values
    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments by name, as JSON values: see `phitodeep.config`."""
        name = type(self).__name__
        named = [own for own in constructors(type(self)) if own]
        unnamed = [p.name for p in (named[-1] if named else ()) if p.kind is p.VAR_KEYWORD]
        if unnamed:  # of the last constructor, which gets what those before it leave
            raise ArgumentError(
                f"{name} takes **{unnamed[0]}, which get_config cannot read back: override "
                "get_config and from_config, or name the arguments."
            )
        found = {}
        for p in parameters(type(self)):
            attribute = self.kept_as.get(p.name, p.name)
            value: Any = getattr(self, attribute, p.empty)
            if value is p.empty or getattr(value, "__self__", None) is self:  # its own method
                raise ArgumentError(
                    f"{name} does not keep its argument {p.name!r}: write self.{p.name} = "
                    f"{p.name} in __init__, name its attribute in kept_as, or override get_config."
                )
            found[p.name] = list(value) if p.kind is p.VAR_POSITIONAL else value
        return found

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Create an object from what `get_config` returned, directly or after a JSON round trip."""
        known = {p.name: p for p in parameters(cls)}
        for name in check_mapping(config, cls.__name__):
            if name not in known:
                raise ArgumentError(
                    f"the config of {cls.__name__} has the unknown key {name!r}."
                    f"{did_you_mean(name, known, 1)} Known: {', '.join(known) or 'none'}."
                )
        for name, p in known.items():
            if name not in config and p.default is p.empty and p.kind is not p.VAR_POSITIONAL:
                raise ArgumentError(f"the config of {cls.__name__} lacks the key {name!r}.")
        # In the order of writing, so that a ref comes after its layer.
        in_order = {name: config[name] for name in known if name in config}
        values = restored(in_order, cls.__name__)
        positional = [  # arguments that cannot be passed by name
            name
            for i, (name, p) in enumerate(known.items())
            if p.kind is p.POSITIONAL_ONLY
            or any(q.kind is q.VAR_POSITIONAL for q in list(known.values())[i + 1 :])
        ]
        first = [values.pop(name, known[name].default) for name in positional]
        starred = next((name for name, p in known.items() if p.kind is p.VAR_POSITIONAL), "")
        rest = values.pop(starred, [])
        if not isinstance(rest, list | tuple):
            raise ArgumentTypeError(f"{cls.__name__}: {starred} must be a list, got {rest!r}.")
        return cls(*first, *rest, **values)
