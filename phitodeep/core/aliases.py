"""Old import paths that go on working: one table, and the finder that imports what it names."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any, cast

PACKAGE = "phitodeep."
ALIASES = {  # old path below phitodeep: where the module is now
    "activations": "functional",
    "builder": "model.builder",
    "checks": "core.checks",
    "config": "core.config",
    "demo": "cli.digits",
    "elementwise": "kernels.elementwise",
    "exchange.onnx.forms": "exchange.onnx.write.forms",
    "exchange.onnx.from_onnx": "model.imports",
    "exchange.torch.reading": "model.imports",
    "exchange.torch.writing": "exchange.torch.write.writing",
    "explorer": "inspect.explorer",
    "files": "core.files",
    "initialization": "layers.initialization",
    "inspect.difference": "inspect.trace",
    "inspect.symptoms": "inspect.diagnosis.symptoms",
    "inspect.thresholds": "inspect.diagnosis.findings",
    "io.forms": "exchange.numpy.forms",
    "layers.augmentation": "layers.images",
    "layers.call": "core.call",
    "layers.chain": "layers.containers",
    "layers.container": "layers.containers",
    "layers.dot_product": "layers.attention",
    "layers.frame": "core.frame",
    "layers.gelu": "layers.activation",
    "layers.joined": "layers.dense",
    "layers.param": "layers.base",
    "layers.recurrence": "layers.recurrent",
    "layers.resizing": "layers.images",
    "layers.softmax": "layers.activation",
    "layers.weights": "layers.base",
    "lora": "model.lora",
    "loss.names": "loss",
    "metrics": "loss.metrics",
    "models": "model.architectures",
    "optimization.exchange": "optimization.gradient_sync",
    "optimization.groups": "optimization.packing",
    "optimization.initialization": "layers.initialization",
    "optimization.matrices": "optimization.muon",
    "optimization.resuming": "optimization.memory",
    "optimization.training": "training.objective",
    "rotary": "functional.rotary",
    "sequential": "model.sequential",
    "steps": "derivations.language",
    "text.hub_tokenizer": "text.tokenizer",
    "threads": "core.threads",
    "training.allocator": "training.loop",
    "training.callbacks": "model.callbacks",
    "training.diagnose": "inspect.diagnosis.callback",
    "training.histograms": "plots.recorder",
    "training.threads": "training.parts",
    "types": "core.types",
    "version": "core.version",
}


def current(path: str) -> str | None:
    """Return the full path of the module that an old path stands for, or None."""
    parts = path.removeprefix(PACKAGE).split(".")
    for n in range(len(parts), 0, -1):
        if home := ALIASES.get(".".join(parts[:n])):
            return PACKAGE + ".".join([home, *parts[n:]])
    return None


class AliasFinder:  # without the base classes, whose module takes long to import
    """Give the import system the module itself, so that no class exists twice."""

    def find_spec(self, path: str, *_: Any) -> ModuleSpec | None:
        if path.startswith(PACKAGE) and current(path):
            return ModuleSpec(path, cast(Any, self))
        return None

    def create_module(self, spec: ModuleSpec) -> None:
        """Let the import system make a module, which is replaced at once."""

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(str(current(module.__name__)))

    def get_code(self, path: str) -> CodeType | None:
        """Return the code that `python -m` runs."""
        path = str(current(path))
        return cast(Any, importlib.util.find_spec(path)).loader.get_code(path)


sys.meta_path.insert(0, AliasFinder())  # first: the folder of a moved package is found otherwise
