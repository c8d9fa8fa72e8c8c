"""What Accelerate and torch write, convert, merge_weights and inspect read.

foreign_checkpoints.py CONVERT MERGE_WEIGHTS INSPECT

Two processes shard a small model with each version of FSDP and save it, and its
optimizer, with the functions that Accelerator.save_state calls: distributed
checkpoints, whole files, files of a rank. Then files of torch.save in every
protocol of pickles and of both forms, and what such a file may hold beside
tensors. Everything is a value or an error that names what it cannot be.
Without torch or Accelerate that part is not run, and that is said.
"""
import collections
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

try:
    import numpy
    import torch
    import torch.distributed as dist
    from safetensors.torch import load_file
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
except ImportError as error:
    print(f"NOT RUN: this Python has no torch ({error})")
    sys.exit(77)

warnings.filterwarnings("ignore")
checked = 0


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(5, 7)
        self.b = torch.nn.Linear(7, 3)
        self.n = torch.nn.LayerNorm(3)

    def forward(self, x):
        return self.n(self.b(torch.relu(self.a(x))))


def sharded(version):
    """A model of this version of FSDP and its optimizer, two steps on."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    torch.manual_seed(version)
    model = Net()
    if version == 1:
        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
    else:
        mesh = init_device_mesh("cpu", (2,))
        fully_shard(model.a, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(2):
        model(torch.randn(4, 5) + dist.get_rank()).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def save_on_two_ranks(rank, folder, port):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    warnings.filterwarnings("ignore")
    from accelerate import FullyShardedDataParallelPlugin
    from accelerate.state import PartialState
    from accelerate.utils import fsdp_utils

    state = PartialState(cpu=True)
    for version in (1, 2):
        model, optimizer = sharded(version)
        for kind in ("SHARDED_STATE_DICT", "FULL_STATE_DICT"):
            for use_dcp in (True, False) if kind == "SHARDED_STATE_DICT" else (True,):
                plugin = FullyShardedDataParallelPlugin(fsdp_version=version, state_dict_type=kind, cpu_ram_efficient_loading=False)
                to = f"{folder}/{version}/{kind}" if use_dcp else f"{folder}/{version}/ranks"
                fsdp_utils.save_fsdp_model(plugin, state, model, to, 0, use_dcp=use_dcp)
                fsdp_utils.save_fsdp_optimizer(plugin, state, optimizer, model, to, 0, use_dcp=use_dcp)
    dist.destroy_process_group()


def run(program, *words):
    return subprocess.run([program, *map(str, words)], capture_output=True, text=True)


def good(program, *words):
    result = run(program, *words)
    assert result.returncode == 0, (program, words, result.stderr)
    return result


def same(actual, wanted, where):
    """Equal to the bit, also of what is nested."""
    global checked
    if isinstance(wanted, dict):
        assert set(actual) == set(wanted), (where, set(actual) ^ set(wanted))
        for key, value in wanted.items():
            same(actual[key], value, f"{where}: {key}")
    elif isinstance(wanted, (list, tuple)):
        assert len(actual) == len(wanted), (where, actual, wanted)
        for i, (a, w) in enumerate(zip(actual, wanted)):
            same(a, w, f"{where}: {i}")
    elif isinstance(wanted, torch.Tensor):
        assert actual.dtype == wanted.dtype and actual.shape == wanted.shape, (where, actual.dtype, actual.shape)
        as_bytes = [x.detach().contiguous().reshape(-1).view(torch.uint8) for x in (actual, wanted)]
        assert torch.equal(*as_bytes), where
        checked += 1
    else:
        assert actual == wanted and type(actual) is type(wanted), (where, actual, wanted)


def check_state(folder, scratch):
    """Of one version of FSDP."""
    whole = folder / "FULL_STATE_DICT"
    model = torch.load(whole / "pytorch_model_fsdp.bin", weights_only=True)
    parts = folder / "SHARDED_STATE_DICT"
    for source in (whole / "pytorch_model_fsdp.bin", parts / "pytorch_model_fsdp_0"):
        good(INSPECT, source, "--verify")
        to = scratch / f"{folder.name}_{source.name}"
        good(CONVERT, f"--from={source}", f"--to={to}", "--format=safetensors")
        same(load_file(to / "model.safetensors"), model, source)
    to = scratch / f"{folder.name}_merged"
    good(MERGE, parts / "pytorch_model_fsdp_0", to)
    same(load_file(to / "model.safetensors"), model, to)
    good(INSPECT, whole / "optimizer.bin", "--verify")
    good(MERGE, parts / "optimizer_0", to, "--unsafe_serialization")
    dcp_to_torch_save(parts / "optimizer_0", scratch / "whole.pt")
    theirs = torch.load(scratch / "whole.pt", weights_only=True)["optimizer"]
    same(torch.load(to / "pytorch_model.bin", weights_only=True), theirs, "optimizer")
    # Files of one rank are not whole.
    for path in sorted((folder / "ranks").iterdir()):
        result = run(CONVERT, f"--from={path}", f"--to={scratch}/none", "--format=safetensors")
        assert result.returncode == 1 and "torch._utils._rebuild_wrapper_subclass is not supported" in result.stderr, result
        assert not (scratch / "none").exists()


def check_files(scratch):
    """Of torch.save, in every protocol and form."""
    t = torch.arange(6.0).reshape(2, 3)
    c = torch.randn(3, dtype=torch.complex64)
    tensors = {
        "plain": {"a": t, "double": t.double() / 3, "complex": c, "short": t.short(), "bool": t > 2},
        "shared": collections.OrderedDict(a=t, b=t, row=t[1], turned=t.t(), part=t[:, 1:2]),
        "parameters": torch.nn.Linear(3, 2).state_dict(keep_vars=True),
        "small": {"empty": torch.empty(0, 3), "scalar": torch.tensor(3), "half": t.half(), "unsigned": t.to(torch.uint16)},
    }
    for name, wanted in tensors.items():
        for protocol in (2, 3, 4, 5):
            for is_zip in (True, False):
                path = scratch / f"{name}_{protocol}_{is_zip}.bin"
                torch.save(wanted, path, pickle_protocol=protocol, _use_new_zipfile_serialization=is_zip)
                good(INSPECT, path, "--verify")
                to = scratch / f"{name}_{protocol}_{is_zip}"
                good(CONVERT, f"--from={path}", f"--to={to}", "--format=safetensors")
                same(load_file(to / "model.safetensors"), dict(wanted), path)


def check_values(scratch):
    """What is listed, and what is refused by name."""
    values = [torch.Size([2, 3]), torch.float32, torch.device("cpu"), 1 << 90, [1, 2.5, "x", None, (True,)]]
    refused = {"scalar": numpy.float64(3.5), "_reconstruct": numpy.arange(3), "defaultdict": collections.defaultdict(list),
               "complex": 1j, "_rebuild_sparse_tensor": torch.eye(2).to_sparse(), "Linear": torch.nn.Linear(2, 2)}
    for protocol in (2, 4):
        for value in values:
            torch.save({"w": torch.ones(2), "value": value}, scratch / "value.bin", pickle_protocol=protocol)
            good(INSPECT, scratch / "value.bin", "--verify")
        for name, value in refused.items():
            torch.save({"w": torch.ones(2), "value": value}, scratch / "value.bin", pickle_protocol=protocol)
            result = run(INSPECT, scratch / "value.bin")
            assert result.returncode == 1 and name in result.stderr, (name, result)


if __name__ == "__main__":
    CONVERT, MERGE, INSPECT = sys.argv[1:4]
    with tempfile.TemporaryDirectory() as path:
        scratch = pathlib.Path(path)
        check_files(scratch)
        check_values(scratch)
        try:
            import accelerate
        except ImportError as error:
            print(f"NOT RUN: Accelerate's folders ({error})")
        else:
            import socket

            with socket.socket() as s:
                s.bind(("127.0.0.1", 0))
                port = s.getsockname()[1]
            torch.multiprocessing.spawn(save_on_two_ranks, (str(scratch / "state"), port), nprocs=2)
            for version in (1, 2):
                check_state(scratch / "state" / str(version), scratch)
            print(f"Accelerate {accelerate.__version__}: both versions of FSDP")
    print(f"foreign_checkpoints: {checked} tensors equal")
