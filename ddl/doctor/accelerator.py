"""torch and what it can compute on. torch is asked in a process of its own, never imported here."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from ddl.doctor.check import Check, fail, ok, warn
from ddl.doctor.sizes import size
from ddl.doctor.torch_facts import Device, TorchFacts

VERSION_MIN: Final = (2, 6)
PATIENCE_S: Final = 120.0
"""A cold import from a slow disk takes tens of seconds."""

_COMMAND: Final = (sys.executable, "-m", "ddl.doctor.torch_facts")
_INSTALL: Final = "Install torch 2.6 or newer into this Python"
_GPU_FILES: Final = {"NVIDIA": Path("/dev/nvidiactl"), "AMD": Path("/dev/kfd")}


def check_torch(*, cores: int) -> Iterator[Check]:
    """Ask torch. `cores` is what this process may keep busy."""
    try:
        done = subprocess.run(
            _COMMAND, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        yield fail(
            "torch.import",
            f"torch and its devices did not answer within {PATIENCE_S:g} s",
            "Try `python -c 'import torch; torch.cuda.is_available()'`, and see the GPU's driver",
        )
        return
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"]
        yield fail("torch.import", f"torch cannot be used: {said[-1]}", _INSTALL)
        return
    facts = msgspec.json.decode(done.stdout.splitlines()[-1], type=TorchFacts)
    yield version(facts)
    yield from devices(facts, _gpus_here())
    yield threads(facts, cores=cores)


def version(facts: TorchFacts) -> Check:
    name = "torch.version"
    numbers = tuple(int(number) for number in re.findall(r"\d+", facts.version)[:2])
    text = f"torch {facts.version}" + (f" for {facts.built_for}" if facts.built_for else "")
    return ok(name, text) if numbers >= VERSION_MIN else fail(name, text, _INSTALL)


def devices(facts: TorchFacts, gpus_here: list[str]) -> Iterator[Check]:
    """A line for each device; `gpus_here` are the makers whose drivers are loaded."""
    for number, device in enumerate(facts.devices):
        yield _device(f"cuda:{number}", device)
    if facts.devices:
        return
    if gpus_here:
        build = f"is built for {facts.built_for}" if facts.built_for else "is built without GPUs"
        yield warn(
            "torch.device",
            f"there is a GPU ({', '.join(gpus_here)}), but torch, which {build}, does not see it",
            "Install the build of torch for it; see `nvidia-smi` and CUDA_VISIBLE_DEVICES",
        )
    else:
        yield ok("torch.device", "no GPU: a learner here trains on the CPU")


def _device(where: str, device: Device) -> Check:
    name = "torch.device"
    if device.error:
        return fail(
            name,
            f"{where} ({device.name}) does not compute: {device.error}",
            "See `nvidia-smi`: the driver may be too old for this torch, or the device is in use",
        )
    room = f"{size(device.free_bytes)} of {size(device.total_bytes)} free"
    return ok(name, f"{where} {device.name}, {room}")


def threads(facts: TorchFacts, *, cores: int) -> Check:
    """More threads than cores wait for each other at every operation."""
    name = "torch.threads"
    if facts.num_threads <= cores:
        return ok(name, f"{facts.num_threads} threads on {cores} usable cores")
    return warn(
        name,
        f"torch takes {facts.num_threads} threads, but {cores} cores are usable",
        f"Set OMP_NUM_THREADS={cores}, or join with --threads {cores}",
    )


def _gpus_here() -> list[str]:
    return [maker for maker, file in _GPU_FILES.items() if file.exists()]
