"""What this run trains: a small model of text, byte by byte. Replace it by your own, part by part.

    ddl learner join ADDRESS --task task.py
    ddl learner join ADDRESS --task task.py --arg data=my-text.txt

Shapes: B windows, T bytes of a window, V = 256 byte values.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

import ddl

CONTEXT = 64
BATCH = 16
WIDTH = 128


class ByteModel(nn.Module):
    """Bytes in, scores of the next byte out."""

    def __init__(self) -> None:
        super().__init__()
        self.byte = nn.Embedding(256, WIDTH)
        self.memory = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.scores = nn.Linear(WIDTH, 256)

    def forward(self, x: Tensor) -> Tensor:  # (B, T) -> (B, T, V)
        seen, _ = self.memory(self.byte(x))
        scores: Tensor = self.scores(seen)
        return scores


def read_text(data: str) -> Tensor:
    """The file `data`, or without one the standard library of this Python; (num_bytes,) uint8."""
    library = Path(sysconfig.get_path("stdlib"))
    files = [Path(data)] if data else sorted(library.glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(map(Path.read_bytes, files))), dtype=torch.uint8)


def windows(text: Tensor, seed: int) -> Iterator[Tensor]:
    """Batches (B, T + 1) from random places of the text, without end."""
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.arange(CONTEXT + 1)
    while True:
        starts = torch.randint(len(text) - CONTEXT, (BATCH, 1), generator=generator)
        yield text[starts + offsets].long()


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    """Mean of -log p(next byte), in nats."""
    scores = model(batch[:, :-1])
    return F.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())


def build(ctx: ddl.TaskContext) -> ddl.Task:
    """The model, and unless it is only initialised, its data and optimizer."""
    torch.manual_seed(ctx.seed)  # all machines must start from the same weights
    model = ByteModel().to(ctx.device)
    if ctx.purpose == "init":
        return ddl.Task(model=model)

    text = read_text(str(ctx.args.get("data", "")))
    held_out, train = text[: len(text) // 20], text[len(text) // 20 :]

    @torch.no_grad()
    def evaluate(model: nn.Module) -> dict[str, float]:
        batches = windows(held_out, seed=0)
        losses = [loss(model, next(batches).to(ctx.device)) for _ in range(32)]
        return {"loss": torch.stack(losses).mean().item()}

    return ddl.Task(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=3e-3),
        batches=windows(train, seed=ctx.data_seed),  # every learner reads other parts
        loss=lambda model, batch: loss(model, batch.to(ctx.device)),
        tokens=lambda batch: batch.shape[0] * (batch.shape[1] - 1),
        evaluate=evaluate,
    )
