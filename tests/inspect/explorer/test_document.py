"""Every document of the explorer follows its schema."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import phitodeep
from phitodeep import layers as L
from phitodeep.inspect.explorer import document
from phitodeep.inspect.explorer.document import text_of
from tests.inspect.explorer.test_engine_edges import S, X, Y, dense, model_of, more

PACKAGE = Path(phitodeep.__file__).parent
SCHEMA = json.loads((PACKAGE / "inspect/explorer/schema.json").read_text())
jsonschema.Draft202012Validator.check_schema(SCHEMA)
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def test_reduced_recorded_and_returned_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "SIZES", [(3, 64)])
    model = dense(L.Tanh())
    with model.hooks(fwd={"1.Y": more}):
        doc = json.loads(text_of(model.trace(X, Y)))
    VALIDATOR.validate(doc)
    assert "returned" in json.dumps(doc)
    assert "thumb" in json.dumps(doc)


def test_versions_agree() -> None:
    properties = SCHEMA["properties"]
    assert properties["version"]["const"] == document.VERSION
    assert properties["format"]["const"] == document.FORMAT


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("version", 2),
        ("live", "yes"),
        ("loss", "nan"),
        ("unknown", 1),
        ("scopes.0.forward.0.kind", "other"),
        ("scopes.0.forward.0.more", 1),
        ("scopes.0.values.X", {"shape": [1]}),
        ("scopes.0.values.X", {"shape": [1], "all": 1, "as": "f4", "data": ""}),
        ("parameters.0-Wx.as", "f2"),
    ],
)
def test_a_wrong_document_is_refused(path: str, value: Any) -> None:
    doc = copy.deepcopy(json.loads(text_of(model_of(L.LSTM(2)).trace(S, S[..., :2]))))
    *keys, last = [key.replace("-", ".") for key in path.split(".")]
    part = doc
    for key in keys:
        part = part[int(key)] if isinstance(part, list) else part[key]
    part[last] = value
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(doc)
