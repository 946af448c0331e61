"""Settings, shapes and inputs that layers refuse: the call, and what the error says."""

import numpy as np
import pytest

from phitodeep import Sequential, initialization, layers
from phitodeep.errors import ArgumentError, ArgumentTypeError, ShapeError

NAMES = vars(layers) | vars(initialization) | {"np": np, "nan": np.nan, "inf": np.inf}
WITHOUT_MEANING = {
    "ELU(0)": "ELU alpha must be > 0, got 0",
    "CELU(-1.0)": "CELU alpha must be > 0",
    "LeakyReLU(nan)": "LeakyReLU alpha",
    "PReLU(inf)": "PReLU init",
    "GELU('erf')": '"none" or "tanh", got \'erf\'',
    "Dense(0, 3)": "Dense.*input_size must be >= 1, got 0",
    "Dense(4, -1)": "Dense.*output_size must be >= 1, got -1",
    "Dropout(1.0)": "Dropout rate must be >= 0 and < 1, got 1",
    "Dropout(-0.1)": "Dropout rate",
    "SpatialDropout(1.0)": "Dropout rate",
    "SpatialDropout(-0.1)": "Dropout rate",
    "GaussianNoise(-1)": "GaussianNoise std must be >= 0, got -1",
    "GaussianNoise(nan)": "GaussianNoise std",
    "LayerNorm(eps=0)": "LayerNorm eps .* > 0, got 0",
    "BatchNorm(eps=-1e-5)": "BatchNorm eps .* > 0",
    "BatchNorm(momentum=1.1)": "BatchNorm momentum",
    "BatchNorm(momentum=-0.1)": "BatchNorm momentum must be >= 0",
    "InstanceNorm(0.0)": "InstanceNorm eps|GroupNorm eps",
    "RMSNorm(0.0)": "RMSNorm eps",
    "GroupNorm(0)": "GroupNorm groups must be >= 1",
    "Conv2D(4, 3, groups=3)": "Conv2D: 4 filters are not divisible by 3 groups",
    "Conv2D(0, 3)": "Conv2D filters must be >= 1",
    "Conv2D(2, 0)": "Conv2D kernel_size must be >= 1",
    "Conv2D(2, (3, 3, 3))": "Conv2D kernel_size takes one integer or 2",
    "Conv1D(2, (3, 3))": "Conv1D kernel_size takes one integer or 1",
    "Conv2D(2, 3, stride=0)": "Conv2D stride must be >= 1",
    "Conv2D(2, 3, stride=(1, 0))": "Conv2D stride must be >= 1",
    "Conv2D(2, 3, dilation=0)": "Conv2D dilation must be >= 1",
    "Conv2D(2, 3, groups=0)": "Conv2D groups must be >= 1",
    "Conv2D(2, 3, padding='full')": "Conv2D padding must be",
    "Conv2D(2, 3, padding=-1)": "Conv2D padding must be >= 0",
    "DepthwiseConv2D(3, multiplier=0)": "DepthwiseConv2D multiplier must be >= 1",
    "ConvTranspose1D(2, 3, output_padding=1)": "ConvTranspose1D.*less than the stride",
    "ConvTranspose2D(2, 3, stride=(3, 2), output_padding=(2, 2))": "ConvTranspose2D",
    "ConvTranspose2D(2, 3, stride=2, output_padding=-1)": "output_padding must be >= 0",
    "ConvTranspose1D(2, 3, stride=2, padding='same', output_padding=1)": "leave out output_p",
    "MaxPool2D(2, padding=2)": "MaxPool2D: padding 2 is more than half",
    "AvgPool1D(1, padding=1)": "AvgPool1D: padding 1 is more than half",
    "MaxPool2D((4, 2), padding=2)": "MaxPool2D: padding 2",
    "MaxPool2D(0)": "MaxPool2D pool_size must be >= 1",
    "MaxPool1D(2, 0)": "MaxPool1D stride must be >= 1",
    "AvgPool2D((1, 2, 3))": "AvgPool2D pool_size takes one integer or 2",
    "AvgPool2D(2, padding='full')": "AvgPool2D padding must be",
    "Upsample2D(2, 'cubic')": "Upsample2D mode must be",
    "Upsample2D(0)": "Upsample2D factor must be >= 1",
    "ZeroPad2D(-1)": "ZeroPad2D padding must be >= 0",
    "ZeroPad2D(((1, 1), (1, 1), (1, 1)))": "ZeroPad2D takes",
    **{f"Permute({dims})": "Permute takes each axis once" for dims in ("0, 1", "1, 1", "1, 3")},
    "RandomFlip(horizontal=False)": "horizontal=True or vertical=True",
    "RandomCrop(0)": "RandomCrop size",
    "RandomCrop(3, padding=-1)": "RandomCrop padding",
    "Reshape()": "takes one or more sizes",
    "Reshape(-1, -1)": "at most one of them -1",
    "Reshape(0, 3)": "Reshape size must be >= 1, got 0",
    "Reshape(-2)": "Reshape size must be >= 1, got -2",
    "Select([])": "at least one column",
    "Embedding(0, 2)": "Embedding vocab_size must be >= 1",
    "Embedding(2, 0)": "Embedding dim must be >= 1",
    "PositionalEmbedding(0)": "PositionalEmbedding max_len must be >= 1",
    "RotaryEmbedding(1.0)": "RotaryEmbedding base must be > 1",
    **{f"{kind}(0)": f"{kind} units must be >= 1" for kind in ("RNN", "LSTM", "GRU")},
    "Bidirectional(RNN(2), 'multiply')": "Bidirectional merge",
    "MultiHeadAttention(0)": "MultiHeadAttention heads must be >= 1",
    "MultiHeadAttention(4, kv_heads=3)": "MultiHeadAttention: 4 heads are not divisible by 3",
    "MultiHeadAttention(2, kv_heads=4)": "2 heads are not divisible by 4 kv_heads",
    "MultiHeadAttention(2, kv_heads=0)": "MultiHeadAttention kv_heads must be >= 1",
    "MultiHeadAttention(2, dropout=1.0)": "MultiHeadAttention dropout must be",
    "MultiHeadAttention(2, dropout=-0.1)": "MultiHeadAttention dropout must be",
    "FeedForward(0)": "FeedForward hidden must be >= 1",
    "FeedForward(4, 'tanh')": 'FeedForward activation must be "gelu", "gelu_tanh", "relu", "silu", '
    '"swiglu" or "geglu", got \'tanh\'',
    "TransformerBlock(0)": "heads must be >= 1",
    "TransformerBlock(2, norm='batch')": "TransformerBlock norm must be",
    "TransformerBlock(2, mlp_ratio=0)": "mlp_ratio must be > 0",
    "TransformerBlock(2, activation='tanh')": "FeedForward activation must be",
    "TransformerBlock(2, dropout=1)": "dropout must be",
    **{f"LowRank(3, 2, alpha={alpha})": "LowRank alpha" for alpha in ("-1.0", "nan", "inf")},
    "Orthogonal(nan)": "gain",
    "LowRank(3, 2, alpha=0)": "LowRank alpha must be > 0",
    "LowRank(3, 0)": "LowRank rank",
    "Lambda(np.abs, np.abs, steps='apart')": "Lambda steps must be",
    "Parallel()": "at least one branch",
    "Parallel(Tanh(), merge='sum')": '"concat", "add" or "multiply", got \'sum\'',
    "Orthogonal(0)": "gain must be > 0, got 0",
    "Constant(inf)": "value must be finite",
}
OF_ANOTHER_TYPE = {
    "LeakyReLU('0.1')": "LeakyReLU alpha must be a number",
    **{f"{f}({a})": f"{f} axis" for f in ("Softmax", "LogSoftmax")
       for a in ("1.5", "'1'", "None", "(1, 2)", "True")},
    "Dense(4.0, 3)": "Dense.*input_size must be an integer, got 4.0",
    "Dense(4, True)": "Dense.*output_size must be an integer, got True",
    "Dense('4')": "Dense.*output_size must be an integer",
    "Dense(4, 3, 'he')": r"Dense.*initializer such as Xavier\(.*got 'he'",
    "Dense(4, 3, He)": "Dense.*initializer such as",
    "Dense(4, He())": "Dense.*output_size must be an integer",
    "Dropout('0.5')": "Dropout rate must be a number",
    "Dropout(True)": "Dropout rate must be a number",
    "LayerNorm(eps='1')": "LayerNorm eps .*number",
    "BatchNorm(momentum=None)": "BatchNorm momentum",
    "GroupNorm(2.0)": "GroupNorm groups",
    **{f"Conv2D(2, **{{'kernel_size': 3, '{s}': {a}}})": f"Conv2D {s}"
       for s in ("kernel_size", "stride", "dilation") for a in ("2.0", "'3'", "True", "None")},
    "Conv2D(2, (1.5, 2))": "Conv2D kernel_size",
    "ConvTranspose1D(2.5, 3)": "ConvTranspose1D filters",
    "Conv1D(2, 3, padding=1.5)": "Conv1D padding",
    **{f"{kind}({a})": kind for kind in ("MaxPool1D", "AvgPool2D", "Upsample2D")
       for a in ("2.0", "'2'", "True", "None")},
    "Reshape(2.0)": "Reshape size must be an integer",
    "Reshape((2, 3))": "Reshape size must be an integer",
    "Select(None)": r"3, \[0, 3\] or range\(4\), got None",
    "Select('age')": "got 'age'",
    "Select(slice(3))": r"got slice\(None, 3, None\)",
    "Select(1.0)": "got 1.0",
    "Select([0, 1.0])": "Select column must be an integer, got 1.0",
    "Select([True, False])": "Select column must be an integer, got True",
    "Select(True)": "Select column must be an integer, got True",
    "Select(np.eye(2, dtype=int))": "Select column must be an integer",
    **{f"{kind}(2.0)": f"{kind} units" for kind in ("RNN", "LSTM", "GRU")},
    **{f"Bidirectional({a})": "Bidirectional takes a recurrent layer"
       for a in ("Dense(3)", "Chain(RNN(2))", "Bidirectional(RNN(2))", "3")},
    "MultiHeadAttention(2.0)": "heads must be an integer",
    "TransformerBlock(2.0)": "heads must be an integer",
    "FeedForward('4')": "FeedForward hidden",
    **{f"Lambda({pair})": "Lambda takes two functions"
       for pair in ("np.abs, None", "None, np.abs", "3, np.abs", "'x', 'y'")},
    **{f"TiedDense({a})": "TiedDense takes an Embedding"
       for a in ("Dense(3, 4)", "PositionalEmbedding(3)", "3", "Embedding")},
    **{f"{kind}({a})": f"{kind} takes layers, got" for kind in ("Chain", "Residual", "Parallel")
       for a in ("Tanh(), 3", "[Tanh(), Tanh()]")},
    **{f"{kind}(Tanh)": rf"{kind} takes layers.*did you mean Tanh\(\)\?"
       for kind in ("Chain", "Residual", "Parallel", "SkipConcat", "TimeDistributed")},
    "Chain([Tanh(), Tanh()])": r"Chain\(\*layers\)",
    "Chain({'a': Tanh()})": r"Chain\(\*layers\.values\(\)\)",
    "Chain('relu')": r"ReLU\(\)",
    "Chain(np.tanh)": "Lambda",
    "He('normal')": r"He takes InitType.NORMAL or .*got 'normal'",
    "Xavier(InitType)": "Xavier takes InitType",
    "Orthogonal('1')": "gain must be a number",
    "Constant(None)": "value must be a number, got None",
}  # fmt: skip
BUILT = [  # a layer, the shape of a sample, what the error says
    ("Dense(784, 128)", (10,), r"784 features.*\(10,\)"),
    ("Conv2D(2, 5)", (4, 6, 1), r"Conv2D: a window of \(5, 5\) does not fit.*\(4, 6\)"),
    ("Conv1D(2, 3, dilation=3)", (6, 1), r"Conv1D: a window of \(7,\) does not fit"),
    ("Conv2D(2, 7, padding=1)", (4, 4, 1), r"padded to \(6, 6\)"),
    ("Conv2D(4, 3, groups=2)", (4, 4, 3), "Conv2D.*3 channels are not divisible by 2 groups"),
    ("ConvTranspose1D(4, 3, groups=2)", (4, 3), "ConvTranspose1D.*3 channels"),
    ("ConvTranspose1D(2, 1, padding=1)", (2, 1), "ConvTranspose1D.*leaves nothing"),
    ("ConvTranspose2D(4, 3)", (4, 4), "ConvTranspose2D.*takes samples"),
    ("Conv2D(4, 3)", (4, 4), r"Conv2D.*\(height, width, C\), got \(4, 4\)"),
    ("Conv1D(4, 3)", (4, 4, 1), r"Conv1D.*\(steps, C\)"),
    ("Conv1D(4, 3)", (4,), r"Conv1D.*\(steps, C\)"),
    ("DepthwiseConv2D(3)", (4, 4), "DepthwiseConv2D.*takes samples"),
    ("MaxPool2D(5)", (4, 6, 1), r"MaxPool2D: a window of \(5, 5\) does not fit.*\(4, 6\)"),
    ("AvgPool1D(5, padding=1)", (2, 1), r"AvgPool1D.*padded to \(4,\)"),
    ("MaxPool2D(2)", (4, 4), r"MaxPool2D.*\(height, width, C\), got \(4, 4\)"),
    ("AvgPool1D(2)", (4, 4, 2), r"AvgPool1D.*\(steps, C\)"),
    ("GlobalAvgPool()", (4,), r"GlobalAvgPool.*\(\*sizes, C\)"),
    ("GlobalMaxPool()", (4,), r"GlobalMaxPool.*\(\*sizes, C\)"),
    ("Upsample2D(2)", (4, 4), "Upsample2D.*height, width, C"),
    ("ZeroPad2D(2)", (4, 4), "ZeroPad2D.*height, width, C"),
    ("Permute(2, 1)", (4,), "Permute.*2 axes"),
    ("RandomCrop(7)", (5, 6, 2), r"RandomCrop\(7\) does not fit into images of shape"),
    ("RandomFlip()", (5, 6), r"takes samples of shape \(height, width, C\)"),
    ("RandomCrop(2)", (5, 6), r"takes samples of shape \(height, width, C\)"),
    ("RandomShift(1)", (5, 6), r"takes samples of shape \(height, width, C\)"),
    ("Reparameterize()", (5,), r"takes samples of shape \(\.\.\., 2 L\).*got samples of shape"),
    ("Reparameterize()", (3, 1), r"takes samples of shape \(\.\.\., 2 L\).*got samples of shape"),
    ("GroupNorm(4)", (2, 6), r"GroupNorm\(4\): 6 channels are not divisible by 4 groups"),
    ("GroupNorm(7)", (6,), "6 channels are not divisible by 7 groups"),
    ("InstanceNorm()", (4,), r"several \w+ in each group"),
    ("GroupNorm(3)", (1, 3), r"several \w+ in each group"),
    ("PositionalEmbedding(3)", (4, 2), r"PositionalEmbedding\(3\) has 3 positions.*of 4"),
    ("PositionalEmbedding(3)", (4,), r"PositionalEmbedding.*\(T, D\)"),
    ("SinusoidalEncoding()", (4, 2, 2), r"SinusoidalEncoding.*\(T, D\)"),
    ("RotaryEmbedding()", (4, 3), "RotaryEmbedding.*even"),
    ("TimeDistributed(GRU(2))", (4,), "GRU|TimeDistributed"),
    *[(f"{kind}(2)", shape, rf"{kind}.*\(T, D\)") for kind in ("RNN", "LSTM", "GRU")
      for shape in ((4,), (4, 2, 2))],
    ("Bidirectional(GRU(2))", (4,), r"GRU.*\(T, D\)"),
    ("MultiHeadAttention(3)", (4, 8), "MultiHeadAttention.*D = 8 cannot be divided"),
    ("MultiHeadAttention(2, rope=True)", (4, 6), "MultiHeadAttention.*even size, which rope"),
    ("MultiHeadAttention(2)", (8,), r"MultiHeadAttention.*\(T, D\), got \(8,\)"),
    ("MultiHeadAttention(2)", (2, 4, 8), r"MultiHeadAttention.*\(T, D\)"),
    ("TransformerBlock(3)", (4, 8), "TransformerBlock.*MultiHeadAttention.*3 heads"),
    ("TransformerBlock(2, rope=True)", (4, 6), "even size, which rope"),
    ("LowRank(3, 4)", (6,), "rank is at most 3: choose a smaller rank"),
    ("LowRank(6, 3)", (2,), "rank is at most 2"),
    *[("TiedDense(Embedding(7, 4))", shape, r"TiedDense.*4 features on the last axis")
      for shape in ((5,), (2, 3))],
    ("Residual(Dense(4))", (3,), r"F must keep the shape \(3,\), but it returns \(4,\)"),
    ("Residual(Dense(1))", (3,), r"F must keep the shape \(3,\), but it returns \(1,\)"),
    ("Parallel(Dense(3), Dense(4), merge='add')", (3,),
     r"cannot merge .*\(3,\), \(4,\).*=\"add\""),
    ("Parallel(Dense(3), Dense(1), merge='multiply')", (3,), r"cannot merge .*\"multiply\""),
    ("Parallel(Flatten(), ReLU())", (2, 3), "cannot merge"),
    ("SkipConcat(Conv2D(2, 3))", (5, 5, 1), "SkipConcat.*must keep all axes.*except the last"),
    ("SkipConcat(Flatten())", (2, 3), "SkipConcat.*must keep all axes"),
    ("TimeDistributed(Conv2D(2, 3))", (3, 2, 5, 1), "TimeDistributed.*does not fit|Conv2D"),
    ("TimeDistributed(Conv2D(2, 3))", (5, 5, 1), "Conv2D.*height, width"),
]  # fmt: skip
UNBUILT = ("Permute", "Pool", "Upsample", "ZeroPad", "Reparameterize")
GIVEN = [  # a layer, what it was built for, shapes of X
    *[(layer, (5, 5, 2), [(2, 5, 5, 3), (2, 5, 5), (5, 5, 2), (2, 1, 5, 5, 2)], layer[:6])
      for layer in ("Conv2D(2, 3)", "ConvTranspose2D(2, 3)", "DepthwiseConv2D(3)")],
    ("Conv2D(2, 3)", (5, 5, 1), [(1, 2, 5, 1)], "does not fit"),
    *[(f"{kind}()", (5,), [(2, 4), (2, 5, 1), (4,)], rf"{kind}.*takes 5 features.*got shape \(")
      for kind in ("LayerNorm", "BatchNorm", "RMSNorm")],
    *[(layer, (3, 6), [(2, 3, 4), (2, 3), (2, 6, 3)], f"{layer[:9]}.*takes 6 features")
      for layer in ("GroupNorm(2)", "InstanceNorm()")],
    ("InstanceNorm()", (5, 4), [(2, 1, 4)], r"several \w+ in each group"),
    *[(layer, (4, 2), [(2, 4), (4, 2), (2, 4, 3), (2, 4, 2, 1), (1, 2, 4, 2)], layer[:3])
      for layer in ("RNN(3)", "LSTM(3)", "GRU(3)")],
    ("Bidirectional(GRU(3))", (4, 2), [(2, 4), (2, 4, 3), (2, 4, 2, 1)], "GRU"),
    ("MultiHeadAttention(2)", (5, 8), [(5, 8), (2, 5, 6), (2, 3, 5, 8)],
     r"MultiHeadAttention.*X \(N, T, 8\)"),
    ("PositionalEmbedding(3)", (2, 4), [(2, 4, 4)], "3 positions, got a sequence of 4"),
    ("PositionalEmbedding(3)", (2, 4), [(2, 3), (3, 4), (1, 2, 2, 4), (2, 3, 5)], r"X \(N, T, 4\)"),
    ("Dense(784, 128)", (784,), [(32, 28, 28)],
     r"Dense\(784, 128\) takes 784 features on the last axis, got shape \(32, 28, 28\)"),
    ("SinusoidalEncoding()", (3, 4), [(2, 3)], "SinusoidalEncoding"),
    ("RotaryEmbedding()", (3, 4), [(2, 3, 3)], "RotaryEmbedding"),
    *[(layer, (5, 6, 2), [(5, 6, 2)], "takes samples")
      for layer in ("RandomFlip()", "RandomCrop(2)", "RandomShift(1)")],
    ("LowRank(3, 2)", (6,), [(2, 5)], "6 features"),
    ("TiedDense(Embedding(7, 4))", (4,), [(2, 5), (2, 2, 3), (2,)], "TiedDense.*4 features"),
    ("SkipConcat(MaxPool2D(2), Upsample2D(2))", (4, 4, 1), [(1, 5, 5, 1)],
     "SkipConcat.*must keep all axes"),
]  # fmt: skip


def make(call):
    return eval(call, dict(NAMES))


def test_settings_without_a_meaning_or_of_another_type_are_refused():
    for error, table in ((ArgumentError, WITHOUT_MEANING), (ArgumentTypeError, OF_ANOTHER_TYPE)):
        for call, says in table.items():
            with pytest.raises(error, match=says):
                pytest.fail(f"{make(call)!r} was made")


@pytest.mark.parametrize(("call", "shape", "says"), BUILT, ids=str)
def test_shapes_that_do_not_fit_are_refused(call, shape, says):
    for layer in (make(call), Sequential(layers.ReLU(), make(call))):
        with pytest.raises((ShapeError, ArgumentError), match=says) as caught:
            layer.build(shape)
    assert "layer 1 of Sequential" in str(caught.value)
    if any(kind in call.partition("(")[0] for kind in UNBUILT):
        with pytest.raises(ShapeError, match=call.partition("(")[0]):
            make(call).forward(np.ones((2, *shape)))


def test_inputs_that_do_not_fit_what_was_built_are_refused():
    for call, built, shapes, says in GIVEN:
        layer = make(call)
        layer.build(built, dtype=np.float64)
        for shape in shapes:
            with pytest.raises(ShapeError, match=says):
                pytest.fail(f"{layer.forward(np.ones(shape)).shape} of {call} for {shape}")
