"""What torch finds on this machine, as one JSON object: `python -m ddl.doctor.torch_facts`.

A program of its own: a driver that hangs or crashes takes only this process with it, and whoever
asks need not import torch.
"""

from __future__ import annotations

import sys

import msgspec


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A CUDA (or ROCm) device; `error` says why it cannot multiply, "" if it can."""

    name: str
    total_bytes: int = 0
    free_bytes: int = 0
    error: str = ""


class TorchFacts(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    built_for: str
    """The accelerator that this build of torch is for, such as "CUDA 12.8"; "" for none."""
    num_threads: int
    devices: tuple[Device, ...] = ()


def main() -> None:
    """Print the facts."""
    import torch

    devices = tuple(_device(number) for number in range(torch.cuda.device_count()))
    hip = torch.version.hip
    facts = TorchFacts(
        version=str(torch.__version__),
        built_for=f"ROCm {hip}"
        if hip
        else f"CUDA {torch.version.cuda}"
        if torch.version.cuda
        else "",
        num_threads=torch.get_num_threads(),
        devices=devices,
    )
    sys.stdout.write(msgspec.json.encode(facts).decode())


def _device(number: int) -> Device:
    import torch

    name = torch.cuda.get_device_name(number)
    try:
        ones = torch.ones(64, 64, device=f"cuda:{number}")
        product = (ones @ ones).sum().item()
        free, total = torch.cuda.mem_get_info(number)
    except RuntimeError as error:
        return Device(name=name, error=str(error).splitlines()[0])
    wrong = "" if product == 64**3 else f"64 x 64 ones multiplied give {product:g}"
    return Device(name=name, total_bytes=total, free_bytes=free, error=wrong)


if __name__ == "__main__":
    main()
