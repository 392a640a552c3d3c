"""Writes text with an exported model: `python sample.py EXPORT.safetensors --prompt "def "`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from task import ByteGPT


def load(file: Path) -> ByteGPT:
    """The model of an export; its sizes are read off the tensors. Raises: ValueError."""
    try:
        weights = load_file(file)
        context, width = weights["position.weight"].shape
        depth = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blocks."))
        model = ByteGPT(width=width, depth=depth, context=context)
        model.load_state_dict(weights)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    except (KeyError, ValueError, RuntimeError) as error:
        raise ValueError(f"{file} is not an export of this model: {error}") from error
    return model.eval()


@torch.no_grad()
def sample(model: ByteGPT, prompt: bytes, *, count: int, temperature: float, seed: int) -> bytes:
    """`count` bytes after a prompt of at least one byte; the same for the same seed."""
    context = model.position.num_embeddings
    generator = torch.Generator().manual_seed(seed)
    text = list(prompt)
    for _ in range(count):
        scores = model(torch.tensor([text[-context:]]))[0, -1] / temperature
        text.append(int(torch.multinomial(scores.softmax(-1), 1, generator=generator)))
    return bytes(text[len(prompt) :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    told = "file written by `ddl export`; of several, the last one, which is the newest version's"
    parser.add_argument("export", type=Path, nargs="+", help=told)
    parser.add_argument("--prompt", default="\ndef ", help="what the text goes on from")
    parser.add_argument("--count", type=int, default=400, help="bytes to write")
    parser.add_argument("--temperature", type=float, default=0.7, help="lower is more cautious")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if not args.prompt or args.temperature <= 0:
        parser.error("--prompt must not be empty, and --temperature must be above 0")
    try:
        model = load(args.export[-1])
    except ValueError as error:
        parser.error(str(error))
    written = sample(
        model,
        args.prompt.encode(),
        count=args.count,
        temperature=args.temperature,
        seed=args.seed,
    )
    sys.stdout.write(args.prompt + written.decode(errors="replace") + "\n")


if __name__ == "__main__":
    main()
