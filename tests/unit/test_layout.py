"""What of a model takes part, by which rule, and in which fragment."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ddl.errors import ConfigError, TaskError
from ddl.merge.inspect import canonical_name, describe_model
from ddl.merge.layout import TensorInfo, plan_layout
from ddl.protocol.records import Layout, Rule
from ddl.protocol.sizes import default_num_fragments

MIB = 1024 * 1024


def parameter(name: str, *shape: int, **more: object) -> TensorInfo:
    return TensorInfo(name=name, shape=shape, dtype="float32", kind="parameter", **more)  # type: ignore[arg-type]


def buffer(name: str, dtype: str, *shape: int) -> TensorInfo:
    return TensorInfo(name=name, shape=shape, dtype=dtype, kind="buffer")


def plan(
    infos: Sequence[TensorInfo], num: int = 1, overrides: Mapping[str, Rule] | None = None
) -> Layout:
    return plan_layout(infos, num=num, method="rda", every_steps=24, overrides=overrides)


def rules(layout: Layout) -> dict[str, str]:
    return {spec.name: spec.rule for spec in layout.tensors}


class TiedGpt(nn.Module):
    """Embedding and head share one weight, as in most language models."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(10, 4)
        self.proj = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.wte.weight
        self.proj.bias.requires_grad = False
        self.register_buffer("mask", torch.ones(2, 2, dtype=torch.bool))
        self.register_buffer("cache", torch.zeros(3), persistent=False)


@pytest.mark.parametrize(
    ("raw", "canonical"),
    [
        ("layers.0.weight", "layers.0.weight"),
        ("module.layers.0.weight", "layers.0.weight"),
        ("_orig_mod.module.layers.0.weight", "layers.0.weight"),
        ("layers.0._orig_mod.weight", "layers.0.weight"),
        ("layers._checkpoint_wrapped_module.module.weight", "layers.weight"),
        ("modules.module_list.weight", "modules.module_list.weight"),
    ],
)
def test_wrappers_leave_no_trace_in_names(raw: str, canonical: str) -> None:
    """DDP, compile and checkpoint prefixes go, wherever they stand; look-alikes stay."""
    assert canonical_name(raw) == canonical


def test_a_model_is_described_by_what_takes_part_in_a_run() -> None:
    """Tied once with its alias, frozen apart, persistent buffers only, in the model's order."""
    model = TiedGpt()
    described = describe_model(model)
    assert [info.name for info in described.infos] == [
        "mask",
        "wte.weight",
        "proj.weight",
        "norm.weight",
        "norm.bias",
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
    ]
    tied = described.infos[1]
    assert tied == parameter("wte.weight", 10, 4, is_embedding=True, aliases=("head.weight",))
    assert described.infos[0] == buffer("mask", "bool", 2, 2)
    assert described.infos[-1] == buffer("norm.num_batches_tracked", "int64")
    assert list(described.frozen) == ["proj.bias"]
    assert described.frozen["proj.bias"] is model.proj.bias
    assert described.tensors["wte.weight"] is model.head.weight


def test_a_wrapped_model_is_described_like_the_bare_one() -> None:
    """A wrapper around the whole and around a part changes nothing."""
    bare = TiedGpt()
    names = describe_model(bare).infos
    bare.register_module("proj", nn.ModuleDict({"_orig_mod": bare.proj}))
    assert describe_model(nn.ModuleDict({"module": bare})).infos == names


def test_an_embedding_tied_to_a_head_that_comes_first_is_still_one() -> None:
    """The order of names does not decide the rule."""
    head, embedding = nn.Linear(4, 10, bias=False), nn.Embedding(10, 4)
    embedding.weight = nn.Parameter(head.weight.detach())  # another object, the same memory
    (info,) = describe_model(nn.ModuleDict({"a": head, "b": embedding})).infos
    assert info.name == "a.weight"
    assert info.aliases == ("b.weight",)
    assert info.is_embedding


def test_a_module_used_twice_counts_once() -> None:
    """Its tensors are listed under the first name."""
    shared = nn.Linear(2, 2)
    described = describe_model(nn.Sequential(shared, shared))
    assert [(i.name, i.aliases) for i in described.infos] == [
        ("0.weight", ("1.weight",)),
        ("0.bias", ("1.bias",)),
    ]


class Clashing(nn.Module):
    """Without wrappers, `weight` and `module.weight` have one name."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.module = nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.LazyLinear(3)), r"'0\.weight' of the model has no shape yet"),
        (
            nn.ParameterDict({"w": nn.Parameter(torch.zeros(2, dtype=torch.complex64))}),
            r"'w' is torch\.complex64; only parameters of real floating type",
        ),
        (Clashing(), "would be called 'weight'"),
        (nn.ParameterDict({"w": nn.Parameter(torch.ones(2), requires_grad=False)}), "nothing to"),
    ],
)
def test_models_that_cannot_be_trained_are_refused_with_the_name(
    model: nn.Module, message: str
) -> None:
    """No shape yet, complex numbers, a clash without wrappers, nothing to train."""
    with pytest.raises(TaskError, match=message):
        describe_model(model)


def test_every_kind_of_tensor_has_its_rule() -> None:
    """Matrices take the method, embeddings and vectors the mean; buffers go by type."""
    described = describe_model(TiedGpt())
    assert rules(plan(described.infos)) == {
        "mask": "heaviest",
        "wte.weight": "mean",
        "proj.weight": "rda",
        "norm.weight": "mean",
        "norm.bias": "mean",
        "norm.running_mean": "mean",
        "norm.running_var": "mean",
        "norm.num_batches_tracked": "max",
    }


def test_a_task_overrides_rules_by_name_alias_and_pattern() -> None:
    """A name beats a pattern, the first pattern beats later ones, `local` leaves the run."""
    infos = [
        parameter("wte", 8, 4, is_embedding=True, aliases=("head",)),
        parameter("a.w", 4, 4),
        parameter("b.w", 4, 4),
        buffer("a.count", "int64"),
    ]
    layout = plan(
        infos, overrides={"*.w": "mean", "a.*": "heaviest", "a.w": "local", "head": "rda"}
    )
    assert rules(layout) == {"wte": "rda", "a.w": "local", "b.w": "mean", "a.count": "heaviest"}
    assert [spec.fragment for spec in layout.tensors] == [0, -1, 0, 0]
    assert layout.num_parameters == 8 * 4 + 4 * 4


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"a.v": "mean"}, r"'a.v': the model has no such tensor. Did you mean 'a.w'"),
        ({"zz*": "mean"}, r"'zz\*': the model has no such tensor. Its tensors: a.w, a.count"),
        ({"a.w": "max"}, "'max' does not fit parameter 'a.w'. Use one of rda, mean"),
        ({"a.count": "rda"}, "'rda' does not fit buffer 'a.count'"),
        ({"a.count": "mean"}, "'mean' does not fit 'a.count', which is int64"),
        ({"a.*": "local"}, "no parameter is shared"),
    ],
)
def test_a_rule_that_cannot_work_is_refused(overrides: dict[str, Rule], message: str) -> None:
    """A misspelt name, or a rule that makes no sense for its tensor, stops the run at genesis."""
    with pytest.raises(TaskError, match=message):
        plan([parameter("a.w", 2, 2), buffer("a.count", "int64")], overrides=overrides)


def test_fragments_by_hand() -> None:
    """Largest first into the lightest: sizes 8, 7, 6, 5, 4 into two.

    8 -> f0 (8); 7 -> f1 (7); 6 -> f1 (13); 5 -> f0 (13); 4: both 13, the lower number -> f0 (17).
    """
    infos = [parameter(f"p{size}", size) for size in (4, 8, 5, 7, 6)]
    layout = plan(infos, 2)
    assert {spec.name: spec.fragment for spec in layout.tensors} == {
        "p8": 0,
        "p7": 1,
        "p6": 1,
        "p5": 0,
        "p4": 0,
    }
    assert [spec.name for spec in layout.tensors] == ["p4", "p8", "p5", "p7", "p6"]
    assert layout.shares == (17 / 30, 13 / 30)


def test_more_fragments_than_parameters_names_both_numbers() -> None:
    """Buffers and empty parameters do not make a fragment."""
    infos = [parameter("a", 2), parameter("b", 2), parameter("e", 0), buffer("n", "int64")]
    assert plan(infos, 2).num_fragments == 2
    with pytest.raises(ConfigError, match=r"is 3, .* only 2 parameters .*Use fragments.num = 2"):
        plan(infos, 3)


@pytest.mark.parametrize(
    ("num_bytes", "num_parameters", "every_steps", "expected"),
    [
        (0, 1, 24, 1),
        (100, 9, 24, 1),
        (2 * 64 * 1024, 9, 24, 2),
        (2 * MIB, 9, 24, 4),
        (2 * MIB, 3, 24, 3),
        (32 * MIB, 99, 24, 4),
        (40 * MIB, 99, 24, 5),
        (4096 * MIB, 99, 24, 24),
        (4096 * MIB, 99, 8, 8),
    ],
)
def test_the_number_of_fragments_follows_the_size(
    num_bytes: int, num_parameters: int, every_steps: int, expected: int
) -> None:
    """8 MiB each; below four of those one per 64 KiB up to four; never beyond tensors or H."""
    assert default_num_fragments(num_bytes, num_parameters, every_steps) == expected


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 500), min_size=1, max_size=40),
    num=st.integers(1, 12),
    seed=st.integers(0, 9),
)
def test_every_layout_is_whole_balanced_and_the_same_for_any_order(
    sizes: list[int], num: int, seed: int
) -> None:
    """Each fragment has a parameter, the heaviest is bounded, order does not matter."""
    infos = [parameter(f"p{i}", size) for i, size in enumerate(sizes)]
    num = min(num, len(infos))
    layout = plan(infos, num)
    loads = [sum(spec.numel for spec in row) for row in layout.by_fragment]
    assert min(loads) > 0
    assert sum(loads) == sum(sizes)
    # what Graham showed for dealing to the lightest, in any order
    assert max(loads) <= sum(sizes) / num + max(sizes) * (1 - 1 / num) + 1e-9
    shuffled = list(infos)
    random.Random(seed).shuffle(shuffled)
    again = plan(shuffled, num)
    assert {s.name: s.fragment for s in layout.tensors} == {
        s.name: s.fragment for s in again.tensors
    }
