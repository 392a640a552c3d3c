"""What `ddl chaos --against ddp` compares with: the same model, data and step on torch.distributed, with
checkpoints, started and restarted by torchrun. Started as `examples/baseline_ddp/README.md` says.

In the folder `--folder`: `rank-N.steps`, a line "INSTANT LIFE STEP" for each step taken;
`rank-N.pid`, locked for as long as the process lives; `checkpoint.safetensors` and `checkpoint.seconds`, what
each of them took.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ddl_cli.data.stdlib_gpt import task as gpt

LR, WARMUP = 3e-3, 20


def main() -> None:
    """Train until somebody ends it."""
    options = parse()
    rank, folder = int(os.environ["RANK"]), Path(options.folder)
    parent, life = os.getppid(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    _lock = announce(folder / f"rank-{rank}.pid")
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(0)
    model = gpt.ByteGPT(width=options.width, depth=options.depth, context=options.context)
    model.to(device)
    optimizer = gpt.make_optimizer(model, LR)
    step = restore(folder / "checkpoint.safetensors", model, optimizer)
    wrapped = DistributedDataParallel(model)  # sends rank 0's weights to all
    text, _ = gpt.read_text("")
    log = os.open(folder / f"rank-{rank}.steps", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    while os.getppid() == parent:  # torchrun itself may have been killed
        over = time.monotonic() + options.step_s
        for group in optimizer.param_groups:
            group["lr"] = LR * min(1.0, (step + 1) / WARMUP)
        optimizer.zero_grad()
        loss = gpt.loss(wrapped, draw(text, options, rank, step).to(device))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        loss.item()  # waits for the device, as whoever looks at the loss does
        time.sleep(max(0.0, over - time.monotonic()))
        step += 1
        os.write(log, f"{time.time():.3f} {life} {step}\n".encode())
        if rank == 0 and step % options.checkpoint_every == 0:
            save(folder, step, model, optimizer)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--step-s", type=float, default=0.0, help="make steps at least so long")
    parser.add_argument("--checkpoint-every", type=int, default=20, metavar="STEPS")
    for name, default in (("width", 32), ("depth", 2), ("context", 32), ("batch", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


def announce(file: Path) -> int:
    """Show our pid in a file that is locked until we end, in whatever way."""
    new = file.with_suffix(".new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.write(descriptor, b"%d" % os.getpid())
    new.rename(file)  # seen with its lock and its number only
    return descriptor


def draw(text: Tensor, options: argparse.Namespace, rank: int, step: int) -> Tensor:
    """The batch of a rank for a step, (B, T + 1): the same whenever it is asked for."""
    generator = torch.Generator().manual_seed(1_000_003 * rank + step)
    starts = torch.randint(len(text) - options.context - 1, (options.batch,), generator=generator)
    return text[starts[:, None] + torch.arange(options.context + 1)].long()


def restore(file: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Go on where the last checkpoint was; its step, 0 without one."""
    if not file.exists():
        return 0
    model_state: dict[str, Tensor] = {}
    moments: dict[int, dict[str, Tensor]] = {}
    tensors = load_file(file)
    step = int(tensors.pop("step"))
    for name, value in tensors.items():
        part, _, rest = name.partition("/")
        if part == "model":
            model_state[rest] = value
        else:
            number, _, moment = rest.partition("/")
            moments.setdefault(int(number), {})[moment] = value
    model.load_state_dict(model_state)
    optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
    return step


def save(folder: Path, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write a checkpoint, which is seen when it is whole, and how long that took."""
    began = time.monotonic()
    held = {"step": torch.tensor(step)}
    held |= {f"model/{name}": value for name, value in model.state_dict().items()}
    for number, moments in optimizer.state_dict()["state"].items():
        held |= {f"optimizer/{number}/{name}": value for name, value in moments.items()}
    save_file(held, folder / "checkpoint.new")
    (folder / "checkpoint.new").replace(folder / "checkpoint.safetensors")
    with (folder / "checkpoint.seconds").open("a") as times:
        times.write(f"{time.monotonic() - began:.6f}\n")


if __name__ == "__main__":
    main()
