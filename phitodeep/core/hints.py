"""Error hints: names from other libraries, and what to write in phitodeep instead."""

from __future__ import annotations

SETTINGS = "pass the loss, optimizer and metrics to {}"
BUILT = ".optimizer(Adam()).loss(CategoricalCrossEntropy()).metrics('accuracy').build()"
_DEVICE = "phitodeep runs on the CPU: leave it out"
_DTYPE = "choose it when you create the model, with dtype='float64' or .dtype('float64')"
_RATE = "set it on the model (model.alpha = ...) or in the builder (.alpha(...))"

OF_MODELS = {  # attributes of models
    "fit": "train it with model.train(X, y, epochs=..., batch_size=...)",
    "compile": f"{SETTINGS.format('Sequential(...) or to the builder')}, as in {BUILT}",
    "score": "model.evaluate(X, y) returns the loss and the metrics",
    "parameters": "layer.params holds a layer's; model.get_weights() returns copies of all",
    "named_parameters": "model.get_weights() returns copies of all, by path",
    "weights": "model.get_weights() returns copies of all, by path",
    "get_layer": "model.layers[i] is a layer, and model.walk() yields all of them by path",
    "eval": "there is no mode to set: predict and evaluate never train and use no dropout",
    "zero_grad": "there is nothing to set to zero: backward overwrites gradients",
    "to": _DEVICE,
    "cuda": _DEVICE,
    "cpu": _DEVICE,
    "double": _DTYPE,
    "half": _DTYPE,
    "float": _DTYPE,
    "save_model": "write model.save(path)",
    "load_model": "write phitodeep.load(path)",
    "history": "model.train(...) returns it",
}
OF_BUILDERS = {  # methods of builders
    "compile": f"{SETTINGS.format('the builder')}, as in {BUILT}",
    "lr": "write .alpha(rate)",
    "learning_rate": "write .alpha(rate)",
    "batch_size": "write .batch(size)",
    "activation": "an activation is a separate layer, such as .relu()",
    "linear": "write .dense(output_size)",
    "branch": "name the value with .name('a'), and go on from it a second time with .at('a')",
    "merge": "write .concat('a') or .add('a'), with the name of the other value",
}
OF_TRAIN = {  # keywords of `Sequential.train`
    "validation_data": "pass X_test and y_test",
    "X_val": "write X_test=",
    "y_val": "write y_test=",
    "batch": "write batch_size=",
    "lr": _RATE,
    "alpha": _RATE,
    "learning_rate": _RATE,
    "optimizer": "set it on the model (.setoptimizer(...)) or in the builder (.optimizer(...))",
    "loss": "set it on the model (.setloss(...)) or in the builder (.loss(...))",
    "initial_epoch": "write resume=path, with a file of ModelCheckpoint",
    "ckpt_path": "write resume=path, with a file of ModelCheckpoint",
    "resume_from_checkpoint": "write resume=path, with a file of ModelCheckpoint",
    "seed": "set it on the model (Sequential(..., seed=0)) or in the builder (.seed(0))",
}
