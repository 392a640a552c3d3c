"""A small GPT over bytes, trained on text that every machine has: Python's own standard library.

    ddl learner join ADDRESS --task task.py
    ddl learner join ADDRESS --task task.py --arg data=my-text.txt --arg batch=16

Arguments, from `[task.args]` of run.toml or `--arg` of one machine (the model's own, marked M, must
be the same everywhere):

    data      a text file to train on instead of the standard library, the same at every learner
    width     M  channels, a multiple of 32
    depth     M  transformer blocks
    context   M  bytes that the model sees at once
    batch     windows in a batch
    lr        peak learning rate of AdamW
    warmup    steps of learning-rate warm-up of each learner

Shapes: B windows, T bytes of a window, C channels, H heads, V = 256 byte values.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

import ddl
from ddl.data import Units

DEFAULTS: dict[str, int | float | str] = {
    "data": "",
    "width": 96,
    "depth": 3,
    "context": 64,
    "batch": 8,
    "lr": 3e-3,
    "warmup": 50,
}
GRADIENT_NORM_MAX = 2.0
VOCAB = 256
HEAD_WIDTH = 32
HELD_OUT_WINDOWS = 512
UNIT_WINDOWS = 1024  # learners claim the text by so many windows at a time


class Block(nn.Module):
    """Attention and a two-layer net, each on top of a residual stream."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.num_heads = width // HEAD_WIDTH
        self.attention_norm = nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.RMSNorm(width)
        self.mlp_in = nn.Linear(width, 4 * width, bias=False)
        self.mlp_out = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, C) -> (B, T, C)
        qkv = self.qkv(self.attention_norm(x)).unflatten(-1, (3, self.num_heads, HEAD_WIDTH))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (B, H, T, C / H)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).flatten(2))
        refined: Tensor = self.mlp_out(F.gelu(self.mlp_in(self.mlp_norm(x))))
        return x + refined


class ByteGPT(nn.Module):
    """Bytes in, scores of the next byte out. The output layer is the embedding itself."""

    def __init__(self, *, width: int, depth: int, context: int) -> None:
        super().__init__()
        if width % HEAD_WIDTH:
            raise ValueError(f"width {width} is not a multiple of {HEAD_WIDTH}")
        self.byte = nn.Embedding(VOCAB, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm = nn.RMSNorm(width)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                # what adds to the residual stream starts smaller, the deeper the stream
                std = 0.02 / (2 * depth) ** 0.5 if name.endswith("_out.weight") else 0.02
                nn.init.normal_(parameter, std=std)

    def forward(self, x: Tensor) -> Tensor:  # (B, T) integers -> (B, T, V)
        x = self.byte(x) + self.position.weight[: x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.byte.weight)


def loss(model: nn.Module, windows: Tensor) -> Tensor:
    """Mean of -log p(next byte), in nats, over windows (B, T + 1)."""
    scores = model(windows[:, :-1])
    return F.cross_entropy(scores.flatten(0, 1), windows[:, 1:].flatten())


class Windows:
    """A text (bytes,) uint8 as a map-style dataset of windows (T + 1,), each byte an input once."""

    def __init__(self, text: Tensor, context: int) -> None:
        self._text = text
        self._context = context
        self.fingerprint = f"{len(text)} bytes by {context}"

    def __len__(self) -> int:
        return (len(self._text) - 1) // self._context

    def __getitem__(self, index: int) -> Tensor:
        first = index * self._context
        return self._text[first : first + self._context + 1].long()


def read_text(data: str) -> tuple[Tensor, Tensor]:
    """Training and held-out text as bytes: a file's last 5 %, or every 20th library module."""
    if data:
        raw = Path(data).expanduser().read_bytes()
        cut = len(raw) - len(raw) // 20
        return _as_tensor(raw[:cut]), _as_tensor(raw[cut:])
    library = Path(sysconfig.get_path("stdlib"))
    left_out = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
    modules = sorted(
        file
        for file in library.rglob("*.py")
        if not left_out & set(file.relative_to(library).parts)
    )
    texts = [module.read_bytes() for module in modules]
    held_out = texts[::20]
    del texts[::20]
    return _as_tensor(b"\n".join(texts)), _as_tensor(b"\n".join(held_out))


def _as_tensor(raw: bytes) -> Tensor:
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)


def held_out_windows(text: Tensor, context: int) -> Tensor:
    """(HELD_OUT_WINDOWS, T + 1), spread evenly over the text; the same on every call.

    Raises: ValueError when the text is shorter than one window.
    """
    last = len(text) - context - 1
    if last < 0:
        raise ValueError(f"{len(text)} bytes of held-out text are less than one window")
    starts = torch.linspace(0, last, HELD_OUT_WINDOWS, dtype=torch.float64).long()
    return text[starts[:, None] + torch.arange(context + 1)].long()


def settings_of(args: Mapping[str, bool | int | float | str]) -> dict[str, Any]:
    """The arguments over their defaults. Raises: ValueError for one that is not known."""
    unknown = sorted(set(args) - set(DEFAULTS))
    if unknown:
        raise ValueError(f"unknown argument {unknown[0]!r}; known are {', '.join(DEFAULTS)}")
    return {name: type(default)(args.get(name, default)) for name, default in DEFAULTS.items()}


def make_optimizer(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    """AdamW that clips gradients: else some orders of the data throw a young model off in its first hundred
    steps, and it ends 5 to 15 % worse."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95))

    def clip(*_: Any) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_NORM_MAX)

    optimizer.register_step_pre_hook(clip)
    return optimizer


def build(ctx: ddl.TaskContext) -> ddl.Task:
    """The model, and unless it is only initialised, its data."""
    args = settings_of(ctx.args)
    torch.manual_seed(ctx.seed)
    model = ByteGPT(width=args["width"], depth=args["depth"], context=args["context"])
    model.to(ctx.device)
    if ctx.purpose == "init":
        return ddl.Task(model=model)

    train, held_out = read_text(args["data"])
    windows = held_out_windows(held_out, args["context"])
    warmup: int = args["warmup"]

    @torch.no_grad()
    def evaluate(model: nn.Module) -> dict[str, float]:
        parts = [loss(model, part.to(ctx.device)) for part in windows.chunk(8)]
        return {"loss": torch.stack(parts).mean().item()}

    def lr_factor(progress: ddl.Progress) -> float:
        # each learner warms its own AdamW up; the decay follows the whole run's clock
        warmed = min(1.0, (progress.local_steps + 1) / warmup)
        return warmed * (1.0 - 0.9 * progress.fraction)

    return ddl.Task(
        model=model,
        optimizer=make_optimizer(model, args["lr"]),
        batches=Units(
            Windows(train, args["context"]),
            unit_size=UNIT_WINDOWS,
            batch_size=args["batch"],
            seed=ctx.seed,
        ),
        loss=lambda model, batch: loss(model, batch.to(ctx.device)),
        tokens=lambda batch: batch.shape[0] * (batch.shape[1] - 1),
        lr_factor=lr_factor,
        evaluate=evaluate,
    )
