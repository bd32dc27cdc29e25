"""SafetensorsFormat: any nested state comes back as it was, without pickle."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_core.contract import State
from runner_core.contract.run import Damaged

torch = pytest.importorskip("torch")
from runner_core.engines.torch.checkpoint import (  # noqa: E402
    SafetensorsFormat,
    flatten,
    unflatten,
)
from torch import nn  # noqa: E402


def round_trip(tree, folder):
    folder.mkdir(exist_ok=True)
    values, tensors = flatten(tree)
    SafetensorsFormat().write(folder, State(values, tensors))
    state = SafetensorsFormat().read(folder)
    return unflatten(state.values, state.tensors)


def same(one, other) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool])
shapes = st.lists(st.integers(0, 3), max_size=3)
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.builds(lambda shape, dtype: torch.ones(shape).to(dtype), shapes, dtypes),
    st.builds(lambda shape: np.arange(np.prod(shape), dtype=np.int32).reshape(shape), shapes),
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.sampled_from(["a", "b", "a.b", "__tensor__"]), st.integers(0, 9)), inner),
    ),
    max_leaves=12,
)


@given(trees)
@settings(max_examples=120, deadline=None)
def test_any_state(tmp_path_factory, tree):
    assert same(round_trip({"tree": tree}, tmp_path_factory.mktemp("state")), {"tree": tree})


def test_other_objects_are_refused():
    with pytest.raises(TypeError, match=r"model.x: a checkpoint cannot hold object"):
        flatten({"model": {"x": object()}})


def test_tied_weights_and_views(tmp_path):
    """Tied tensors are one in the file and again equal; parts of one memory become tensors of their own."""
    whole = torch.arange(12.0).reshape(3, 4)
    tree = {
        "model": {"a": whole, "tied": whole, "row": whole[1], "turned": whole.T, "every": whole[:, ::2]},
        "image": torch.arange(16.0).reshape(1, 2, 2, 4).to(memory_format=torch.channels_last),
    }
    expected = {"model": {k: t.clone() for k, t in tree["model"].items()}, "image": tree["image"].clone()}
    back = round_trip(tree, tmp_path)
    assert same(back, expected)
    assert back["model"]["a"].data_ptr() == back["model"]["tied"].data_ptr()
    assert back["model"]["a"].data_ptr() != back["model"]["row"].data_ptr()


def test_a_network_with_tied_layers_and_its_optimizer(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.out = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
            self.out.weight = self.embed.weight

    network = Tied()
    optimizer = torch.optim.AdamW(network.parameters())
    network.out(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    back = round_trip({"model": network.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path)
    again = Tied()
    again.load_state_dict(back["model"])
    optimizer2 = torch.optim.AdamW(again.parameters())
    optimizer2.load_state_dict(back["optimizer"])
    assert same(dict(again.state_dict()), dict(network.state_dict()))
    assert same(optimizer2.state_dict(), optimizer.state_dict())


def test_weights_are_plain_safetensors(tmp_path):
    """Another program reads the network's weights under their own names."""
    from safetensors.torch import load_file

    network = nn.Linear(2, 3)
    round_trip({"model": network.state_dict(), "step": 3}, tmp_path)
    assert load_file(tmp_path / "model.safetensors").keys() == {"weight", "bias"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.safetensors", "state.json"]


@pytest.mark.parametrize("harm", ["no state", "not json", "lost tensors", "torn tensors"])
def test_files_of_another_kind(tmp_path, harm):
    round_trip({"model": {"w": torch.ones(3)}, "tied": [torch.ones(2)] * 2}, tmp_path)
    state, weights = tmp_path / "state.json", tmp_path / "training.safetensors"
    if harm == "no state":
        state.unlink()
    elif harm == "not json":
        state.write_text("{")
    elif harm == "lost tensors":
        weights.unlink()
    else:
        weights.write_bytes(weights.read_bytes()[:-3])
    with pytest.raises(Damaged):
        SafetensorsFormat().read(tmp_path)


def test_generators_and_statistics_come_back(tmp_path):
    from runner_core.engines.torch.checkpoint import read_generators, write_generators

    cpu = torch.device("cpu")
    state = round_trip(read_generators(cpu), tmp_path)
    first = (torch.rand(3), np.random.random(3))  # noqa: NPY002
    write_generators(state, cpu)
    assert torch.equal(first[0], torch.rand(3))
    assert np.array_equal(first[1], np.random.random(3))  # noqa: NPY002
    json.dumps(flatten(read_generators(cpu))[0])
