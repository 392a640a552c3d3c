"""Handwritten digits (scikit-learn's, 8 x 8 pixels), by four small models: `--arg model=NAME`.

    conv       convolutions with BatchNorm, whose statistics are averaged among learners
    experts    a mixture of experts, of which each image passes through one
    plain      two layers, all trained
    adapters   the same two layers frozen, read from `base`, and low-rank adapters trained on top

Arguments, from `[task.args]` of run.toml or `--arg` of one machine (those marked M must be the same
everywhere):

    model     M  one of the above
    base      M  for `adapters`: a safetensors file, exported from a run of `plain`
    turned    M  whether the images are turned by a quarter: the new task that adapters learn
    batch     images in a batch
    lr        peak learning rate of AdamW

Shapes: B images, K = 10 digits, E experts, R the rank of an adapter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

import ddl
from ddl.data import Units

DEFAULTS: dict[str, bool | int | float | str] = {
    "model": "conv",
    "base": "",
    "turned": False,
    "batch": 32,
    "lr": 4e-3,
}
PIXELS, CLASSES = 64, 10
HELD_OUT = 4  # every so many-th image
UNIT_IMAGES = 128  # learners claim the images by so many at a time


def conv() -> nn.Module:
    def layer(before: int, after: int) -> nn.Sequential:
        filters = nn.Conv2d(before, after, 3, padding=1, bias=False)
        return nn.Sequential(filters, nn.BatchNorm2d(after), nn.ReLU())

    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        layer(1, 16),
        layer(16, 32),
        nn.MaxPool2d(2),
        layer(32, 32),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, CLASSES),
    )


class Experts(nn.Module):
    """Each image goes through the expert that the gate likes most, weighted by how much it does."""

    balance: Tensor
    """Of the last batch: 1 when the experts share it evenly, up to E when one has all."""

    def __init__(self, num: int = 4, width: int = 32) -> None:
        super().__init__()
        self.gate = nn.Linear(PIXELS, num)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(PIXELS, width), nn.ReLU(), nn.Linear(width, CLASSES))
            for _ in range(num)
        )

    def forward(self, x: Tensor) -> Tensor:  # (B, 64) -> (B, K)
        liked = self.gate(x).softmax(-1)  # (B, E)
        weight, chosen = liked.max(-1)
        share = F.one_hot(chosen, liked.shape[1]).float().mean(0)
        self.balance = liked.shape[1] * (share * liked.mean(0)).sum()
        out = x.new_zeros(len(x), CLASSES)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().squeeze(1)
            out = out.index_copy(0, rows, expert(x[rows]))  # no row: no gradient, and no movement
        weighted: Tensor = out * weight[:, None]
        return weighted


def plain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(PIXELS, 64), nn.ReLU(), nn.Linear(64, CLASSES))


class Adapter(nn.Module):
    """A frozen linear layer, and beside it the product of two thin matrices, which begins as zero."""

    def __init__(self, base: nn.Linear, rank: int = 8) -> None:
        super().__init__()
        self.base = base.requires_grad_(requires_grad=False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        adapted: Tensor = self.base(x) + self.up(self.down(x))
        return adapted


def adapters(base: str) -> nn.Module:
    """Where `base` is not given, the run's own takes its place: only the coordinator needs the file."""
    model = plain()
    if base:
        model.load_state_dict(load_file(base))
    return nn.Sequential(*(Adapter(m) if isinstance(m, nn.Linear) else m for m in model))


def make_model(args: Mapping[str, Any]) -> nn.Module:
    """Raises: ValueError for a model that is not known."""
    match args["model"]:
        case "conv":
            return conv()
        case "experts":
            return Experts()
        case "plain":
            return plain()
        case "adapters":
            return adapters(args["base"])
        case other:
            raise ValueError(
                f"model {other!r} is unknown; known are conv, experts, plain, adapters"
            )


def read_images(*, turned: bool) -> tuple[list[tuple[Tensor, Tensor]], tuple[Tensor, Tensor]]:
    """Rows to train on, each (64,) in 0..1 and its digit; and held out all at once, (B, 64) and (B,)."""
    digits = load_digits()
    images = torch.from_numpy(digits.images).float() / 16.0
    if turned:
        images = images.rot90(1, (1, 2))
    x, y = images.flatten(1), torch.from_numpy(digits.target)
    held_out = torch.arange(len(y)) % HELD_OUT == 0
    train = list(zip(x[~held_out], y[~held_out], strict=True))
    return train, (x[held_out], y[held_out])


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Mean cross-entropy; experts also pay for an uneven share of the work."""
    x, y = batch
    scores = model(x)
    error = F.cross_entropy(scores, y)
    if isinstance(model, Experts):
        error = error + 0.01 * model.balance
    return error


@torch.no_grad()
def measure(model: nn.Module, held_out: tuple[Tensor, Tensor]) -> dict[str, float]:
    """Loss, and percent of right answers; statistics of BatchNorm are used, not updated."""
    was_training = model.training
    model.eval()
    x, y = held_out
    scores = model(x)
    model.train(was_training)
    right = (scores.argmax(1) == y).float().mean()
    return {"loss": F.cross_entropy(scores, y).item(), "accuracy": 100 * right.item()}


def settings_of(args: Mapping[str, bool | int | float | str]) -> dict[str, Any]:
    """The arguments over their defaults. Raises: ValueError for one that is not known."""
    unknown = sorted(set(args) - set(DEFAULTS))
    if unknown:
        raise ValueError(f"unknown argument {unknown[0]!r}; known are {', '.join(DEFAULTS)}")
    return {name: type(default)(args.get(name, default)) for name, default in DEFAULTS.items()}


def build(ctx: ddl.TaskContext) -> ddl.Task:
    """The model, and unless it is only initialised, its data."""
    args = settings_of(ctx.args)
    torch.manual_seed(ctx.seed)
    model = make_model(args).to(ctx.device)
    if ctx.purpose == "init":
        return ddl.Task(model=model)
    train, held_out = read_images(turned=args["turned"])

    def here(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return batch[0].to(ctx.device), batch[1].to(ctx.device)

    trained = [p for p in model.parameters() if p.requires_grad]
    return ddl.Task(
        model=model,
        optimizer=torch.optim.AdamW(trained, lr=args["lr"], weight_decay=0.05),
        batches=Units(train, unit_size=UNIT_IMAGES, batch_size=args["batch"], seed=ctx.seed),
        loss=lambda model, batch: loss(model, here(batch)),
        tokens=lambda batch: len(batch[1]),
        lr_factor=lambda progress: 1.0 - 0.95 * progress.fraction,
        evaluate=lambda model: measure(model, here(held_out)),
    )
