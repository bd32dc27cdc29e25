"""The state of a PyTorch training: random generators, one flat table of tensors, and its files in safetensors."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from runner_core.contract import Json, State, Tensors
from runner_core.contract.run import OtherWeights
from runner_core.contract.team import Team
from runner_core.data.sampling import stream_seed
from runner_core.engines import checkpoint
from runner_core.engines.checkpoint import SafetensorsFiles, damaged_if_wrong
from runner_core.engines.torch import accelerator, ranks
from runner_core.engines.torch.shards import Rows, gathered, is_copy, is_rows, own, parts

INDEX = "index.json"


class SafetensorsFormat(SafetensorsFiles):
    """`CheckpointFormat` for torch, also for tensors whose rows several processes have (`DividedFormat`).

    The rows of each process are files of its own, `model-00001-of-00002.safetensors`. `index.json` has the number of
    processes and the whole shapes.
    """

    def write_part(self, folder: Path, state: State, number: int, count: int) -> Sequence[Path]:
        rows, shared = self.apart({name: state.tensors[name] for name in state.divided})
        written = self.write_tensors(folder, rows, _ending(number, count))
        if number > 0:
            return written
        whole = {name: tensor for name, tensor in state.tensors.items() if name not in state.divided}
        index = {"files": count, "shapes": state.divided, "shared": shared}
        (folder / INDEX).write_text(json.dumps(index), encoding="utf-8")
        return [*written, folder / INDEX, *self.write_files(folder, State(state.values, whole))]

    def read(self, folder: Path, device: str = "cpu") -> State:
        state = self.read_rows(folder, device)
        state.tensors = {name: t.whole() if isinstance(t, Rows) else t for name, t in state.tensors.items()}
        return state

    def read_rows(self, folder: Path, device: str = "cpu") -> State:
        state = super().read(folder, device)
        if (folder / INDEX).is_file():
            with damaged_if_wrong(folder, folder / INDEX):
                index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
                count = int(index["files"])
                files = [self.read_tensors(folder, device, _ending(number, count)) for number in range(count)]
                for name, shape in index["shapes"].items():
                    stored = index["shared"].get(name, name)
                    state.tensors[name] = Rows([part[stored] for part in files if stored in part], shape)
        return state

    def save(self, tensors: Tensors, file: Path) -> None:
        save_file(tensors, file)

    def load(self, file: Path, device: str) -> Tensors:
        return load_file(file, device=device)

    def apart(self, tensors: Tensors) -> tuple[Tensors, dict[str, str]]:
        return apart(tensors)


def apart(tensors: Tensors) -> tuple[Tensors, dict[str, str]]:
    """Return contiguous tensors that share no memory, and the names of those that equal another one."""
    own: Tensors = {}
    shared: dict[str, str] = {}
    first: dict[Any, str] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        place = place_of(tensor)
        if tensor.numel() and place in first:
            shared[name] = first[place]
            continue
        first[place] = name
        # A part of another tensor's memory is written as a tensor of its own.
        storage = tensor.untyped_storage().data_ptr()
        own[name] = tensor.clone().contiguous() if storage in storages else tensor.contiguous()
        storages.add(storage)
    return own, shared


def place_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return where the tensor's values lie, and how: equal for tensors that are the same."""
    return tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def flatten(tree: Any, gathers: bool = True) -> tuple[Json, Tensors]:
    """Flatten a tree of torch's tensors; see `engines.checkpoint.flatten`.

    With several processes all must call it. Sharded tensors are put together in the first one's host memory; the others
    get empty ones instead. Without `gathers` they stay as they are.

    >>> flatten({"a": torch.ones(2), "b": [1, None]})[0]
    {'a': {'__tensor__': 'a'}, 'b': [1, None]}
    """
    return checkpoint.flatten(tree, _whole if gathers else _tensor, torch.from_numpy)


def _tensor(leaf: Any) -> torch.Tensor | None:
    return leaf.detach() if isinstance(leaf, torch.Tensor) else None


def _whole(leaf: Any) -> torch.Tensor | None:
    if not isinstance(leaf, torch.Tensor):
        return None
    whole = gathered(leaf.detach())
    if own(leaf) is leaf:
        return whole
    return whole.cpu() if ranks.number() == 0 else torch.empty(0)


def _ending(number: int, count: int) -> str:
    """Return how the files of process `number` (from 0) end."""
    return f"-{number + 1:05d}-of-{count:05d}.safetensors"


class Held:
    """Copies of a training's tensors in host memory, page-locked for a GPU's; each call uses the memory again."""

    def __init__(self) -> None:
        self._memory: dict[str, torch.Tensor] = {}

    def __call__(self, tensors: Tensors, divided: bool) -> tuple[Tensors, dict[str, tuple[int, ...]], int | None]:
        """Return the copies, the whole shapes of those that are this process's rows, and `State.parts`.

        Waits for the device.

        Tensors that share memory have one copy. Without `divided`, the first process gathers sharded tensors. Other
        processes return only what they have to write: nothing, or their rows.
        """
        holders: int | None = None
        copies: Tensors = {}
        shapes: dict[str, tuple[int, ...]] = {}
        names: dict[Any, str] = {}
        for name, tensor in tensors.items():
            rows = own(tensor)
            place = (*place_of(rows), tuple(tensor.shape))
            if divided and is_rows(tensor):
                holders = parts(tensor)
                if is_copy(tensor):
                    continue
                shapes[name] = tuple(tensor.shape)
            else:
                rows = gathered(tensor)  # by all processes
                if ranks.number() > 0:
                    continue
            first = names.setdefault(place, name) if rows.numel() else name
            copies[name] = copies[first] if first != name else self._copy(name, rows)
        for device in {tensor.device for tensor in tensors.values()}:
            accelerator.wait(device)
        return copies, shapes, holders

    def _copy(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        kept = self._memory.get(name)
        if kept is None or (kept.shape, kept.dtype) != (tensor.shape, tensor.dtype):
            locked = accelerator.has_streams(tensor.device)
            kept = self._memory[name] = torch.empty_like(tensor, device="cpu", pin_memory=locked)
        return kept.copy_(tensor, non_blocking=accelerator.has_streams(tensor.device))


def unflatten(json: Json, tensors: Tensors) -> Any:
    """Return the nested state that `flatten` was given."""
    return checkpoint.unflatten(json, tensors, lambda tensor: tensor.cpu().numpy())


def refuse_other_dtypes(saved: Mapping[str, torch.Tensor], own: Mapping[str, torch.Tensor]) -> None:
    """Raise BadInput if a saved weight has another dtype than the network's, to which it would be cast silently."""
    for name, tensor in saved.items():
        if name in own and tensor.dtype != own[name].dtype:
            raise OtherWeights(
                f"the weights do not fit this project's network: {name} is {tensor.dtype}, not {own[name].dtype}"
            )


def seed_generators(seed: int) -> None:
    """Seed the generators that a project's own code may use (dropout, initial weights)."""
    torch.manual_seed(seed)
    np.random.seed(seed % (1 << 32))  # noqa: NPY002 - for code that is not ours
    random.seed(seed)


def read_generators(device: torch.device, everything: bool = True) -> dict[str, Any]:
    """Return the state of torch's default generators (host and device); `everything` adds NumPy's and Python's."""
    state: dict[str, Any] = {"torch": torch.get_rng_state()}
    if device.type != "cpu":
        state[device.type] = accelerator.read_generator(device)
    if everything:
        state["numpy"] = np.random.get_state()  # noqa: NPY002
        state["python"] = random.getstate()
    return state


def write_generators(state: dict[str, Any], device: torch.device) -> None:
    """Set generators to the state from `read_generators`."""
    torch.set_rng_state(state["torch"].cpu())
    if device.type != "cpu" and device.type in state:
        accelerator.write_generator(state[device.type].cpu(), device)
    if "numpy" in state:
        np.random.set_state(state["numpy"])  # noqa: NPY002
        random.setstate(state["python"])


class Generators:
    """Default generators of this process, one of `team`; a checkpoint holds those of all.

    The first process has the generators of a single-process training; the others draw different numbers.
    """

    def __init__(self, team: Team, device: torch.device, seed: int) -> None:
        self._team, self._device, self._seed = team, device, seed
        self._start_apart(0)

    def _start_apart(self, step: int) -> None:
        if not self._team.first:
            seed_generators(stream_seed(self._seed, step, self._team.number))

    def read(self) -> dict[str, Any]:
        """Return the state for the checkpoint: `generators`, and with more processes `others`, theirs in order."""
        own = read_generators(self._device)
        if self._team.count == 1:
            return {"generators": own}
        values, tensors = flatten(own)
        every = self._team.every([values, {name: [str(t.numpy().dtype), t.tolist()] for name, t in tensors.items()}])
        return {"generators": own, "others": [_unpacked(*packed) for packed in every[1:]]}

    def write(self, saved: Mapping[str, Any], step: int) -> None:
        """Restore the state in the checkpoint of `step` steps, or start anew if its number of processes differs."""
        others = saved.get("others", [])
        if self._team.first:
            write_generators(saved["generators"], self._device)
        elif len(others) == self._team.count - 1:
            write_generators(others[self._team.number - 1], self._device)
        else:
            self._start_apart(step)


def _unpacked(values: Json, packed: Mapping[str, Any]) -> Any:
    return unflatten(values, {name: torch.from_numpy(np.array(v, dtype)) for name, (dtype, v) in packed.items()})
