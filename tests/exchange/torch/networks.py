"""PyTorch modules as people write them."""

import torch
import torch.nn.functional as F
from torch import nn


class Calls(nn.Module):
    """A module of one function of x, and perhaps other modules."""

    def __init__(self, function, **modules):
        super().__init__()
        for name, module in modules.items():
            setattr(self, name, module)
        self.function = function

    def forward(self, x):
        return self.function(self, x)


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 4, 3)
        self.p = 0.3
        self.fc1, self.fc2, self.drop = nn.Linear(4 * 3, 12), nn.Linear(12, 5), nn.Dropout(0.2)

    def forward(self, x):
        x = F.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), (1, 2))
        x = self.drop(x.view(x.size(0), -1))
        return self.fc2(F.dropout(self.fc1(x).relu(), self.p, self.training))


class Block(nn.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(outer), nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.relu = nn.ReLU(inplace=True)
        self.down = None
        if stride != 1 or inner != outer:
            self.down = nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer)
            )

    def forward(self, x):
        identity = x if self.down is None else self.down(x)
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        start = (nn.Conv2d(3, 4, 3, 1, 1), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.stem = nn.Sequential(*start, nn.MaxPool2d(3, 2, 1))
        self.layers = nn.Sequential(Block(4, 4, 1), Block(4, 6, 2), Block(6, 6, 1))
        self.pool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(6, 5)

    def forward(self, x):
        return self.fc(torch.flatten(self.pool(self.layers(self.stem(x))), 1))


def unet():
    def forward(s, x):
        a = F.silu(s.a(x))
        b = F.silu(s.b(F.avg_pool2d(a, 2)))
        return s.out(F.silu(s.c(torch.cat([s.up(b), a], dim=1))))

    sizes = {"a": (2, 3, 3), "b": (3, 4, 3), "c": (6, 3, 3), "out": (3, 2, 1)}
    convs = {name: nn.Conv2d(*given, padding=given[2] // 2) for name, given in sizes.items()}
    return Calls(forward, **convs, up=nn.ConvTranspose2d(4, 3, 2, 2))


class Recurrent(nn.Module):
    """`use` says what is read of a recurrent module of two layers."""

    def __init__(self, kind, use, bidirectional):
        super().__init__()
        self.embed = nn.Embedding(9, 4)
        self.rnn = kind(4, 3, 2, batch_first=True, bidirectional=bidirectional, dropout=0.1)
        self.head = nn.Linear(3 * (1 + (bidirectional and use != "h")), 2)
        self.use, self.cells = use, kind is nn.LSTM

    def forward(self, x):
        out, h = self.rnn(self.embed(x))
        h = h[0] if self.cells else h
        read = {
            "last": lambda: out[:, -1],
            "last, all features": lambda: out[:, -1, :],
            "first": lambda: out[:, 0],
            "h": lambda: h[-1],
            "both h": lambda: torch.cat([h[-2], h[-1]], dim=1),
            "both h are the same": lambda: torch.cat([h[-1], h[-1]], dim=1),
            "all": lambda: out,
            "mean": lambda: out.mean(dim=1),
            "max": lambda: out.max(dim=1)[0],
            "last and mean": lambda: out[:, -1] + out.mean(1),
            "both h and mean": lambda: torch.cat([h[-2], h[-1]], dim=-1) * out.mean(1),
        }
        return self.head(read[self.use]())


class Encoder(nn.Module):
    def __init__(self, norm_first, activation):
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            4, 2, 6, batch_first=True, norm_first=norm_first, activation=activation
        )
        self.embed, self.positions = nn.Embedding(9, 4), nn.Parameter(torch.randn(1, 8, 4))
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(4), enable_nested_tensor=False)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = self.embed(x) + self.positions[:, : x.size(1)]
        return self.head(self.encoder(x).mean(dim=1)).log_softmax(-1)


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(9, 4), nn.Embedding(8, 4)
        self.drop = nn.Dropout(0.1)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(4, 2, 8, 0.1, F.gelu, batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 9, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x):
        _, T = x.size()
        assert T <= 8, "too long"
        x = self.drop(self.tokens(x) + self.positions(torch.arange(T, device=x.device)))
        mask = nn.Transformer.generate_square_subsequent_mask(T).to(x.dtype)
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return self.head(self.norm(x))


def attention(causal):
    def forward(s, x):
        T = x.shape[1]
        mask = torch.triu(torch.ones(T, T, dtype=torch.bool), 1) if causal else None
        h = s.norm(x)
        y, _ = s.attend(h, h, h, need_weights=False, attn_mask=mask)
        return s.head(x + y)[:, 0]

    attend = nn.MultiheadAttention(6, 3, batch_first=True)
    return Calls(forward, norm=nn.LayerNorm(6), attend=attend, head=nn.Linear(6, 2))


def text_cnn():
    def forward(s, x):
        x = s.embed(x).transpose(1, 2)
        parts = [torch.tanh(conv(x)) for conv in s.convs]
        return s.head(torch.cat([F.max_pool1d(p, p.size(2)).squeeze(2) for p in parts], 1))

    convs = nn.ModuleList(nn.Conv1d(4, 3, k) for k in (2, 3))
    return Calls(forward, embed=nn.Embedding(9, 4), convs=convs, head=nn.Linear(6, 2))


def gated():
    def forward(s, x):
        a, b = s.inner(x).chunk(2, -1)
        return s.head(a * torch.sigmoid(b)).softmax(-1)

    return Calls(forward, inner=nn.Linear(4, 6), head=nn.Linear(3, 2))


def moved():
    """Channels last in the middle, as in a ConvNeXt."""

    def forward(s, x):
        x = s.norm(s.linear(s.conv(x).permute(0, 2, 3, 1)))
        return x.movedim(-1, 1).mean([2, 3])

    return Calls(forward, conv=nn.Conv2d(3, 4, 3), linear=nn.Linear(4, 5), norm=nn.LayerNorm(5))


def mixer():
    """A Linear over positions: the axes are really exchanged."""

    def forward(s, x):
        return s.linear(s.conv(x).flatten(2)).tanh().reshape(x.shape[0], -1)

    return Calls(forward, conv=nn.Conv2d(3, 4, 3), linear=nn.Linear(12, 5))


def squeezed():
    """Axes of size 1 come and go."""

    def forward(s, x):
        x = s.one(s.conv(x).mean(dim=(2, 3), keepdim=True)).squeeze(-1).unsqueeze(1)
        return s.head(x.flatten(1))

    return Calls(forward, conv=nn.Conv2d(2, 3, 3), one=nn.Conv2d(3, 3, 1), head=nn.Linear(3, 2))


def slices():
    def forward(s, x):
        first, rest = x.split([3, 2], dim=-1)
        y = s.a(first) + s.b(rest)
        return torch.cat([y[:, ::2], y[:, -1:]], dim=1)[..., 1:3]

    return Calls(forward, a=nn.Linear(3, 4), b=nn.Linear(2, 4))
