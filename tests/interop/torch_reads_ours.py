"""torch reads what tessera writes: files of tensors, and distributed checkpoints.

python torch_reads_ours.py FOLDER   (FOLDER is what write_torch_files wrote; needs torch, safetensors)
"""
import glob
import os
import sys

try:
    import torch
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import load_file
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
except ImportError as error:
    print(f"NOT RUN: this Python has no torch ({error})")
    sys.exit(77)

folder = sys.argv[1]
checked = 0


def same(actual, wanted, name):
    global checked
    assert actual.dtype == wanted.dtype, (name, actual.dtype, wanted.dtype)
    assert actual.shape == wanted.shape, (name, actual.shape, wanted.shape)
    assert torch.equal(actual.reshape(-1).view(torch.uint8), wanted.reshape(-1).view(torch.uint8)), name
    checked += 1


for mmap in (False, True):
    model = torch.load(os.path.join(folder, "pytorch_model.bin"), weights_only=True, mmap=mmap)
    expected = load_file(os.path.join(folder, "pytorch_model.safetensors"))
    assert list(sorted(model)) == list(sorted(expected)), (list(model), list(expected))
    for name, tensor in model.items():
        same(tensor, expected[name], name)
        assert tensor.untyped_storage().nbytes() == tensor.nbytes, name

    optimizer = torch.load(os.path.join(folder, "optimizer.bin"), weights_only=True, mmap=mmap)
    for name, wanted in load_file(os.path.join(folder, "optimizer.safetensors")).items():
        index, state = name.split(".")
        same(optimizer["state"][int(index)][state], wanted, name)
    group = optimizer["param_groups"][0]
    assert group == {"lr": 1e-3, "betas": (0.9, 0.999), "fused": None, "maximize": False, "big": 1 << 40, "negative": -3, "params": [0, 1, 2]}, group
    assert optimizer["name"] == "α run"
    assert optimizer["tied"][0].data_ptr() == optimizer["tied"][1].data_ptr() == optimizer["state"][0]["exp_avg"].data_ptr()

for path in sorted(glob.glob(os.path.join(folder, "distributed_*"))):
    expected = load_file(os.path.join(path, "expected.safetensors"))
    # Into tensors of known shapes, as a model that resumes does.
    target = {"model": {name: torch.zeros_like(tensor) for name, tensor in expected.items()}}
    dcp.load(target, checkpoint_id=path, no_dist=True)
    for name, wanted in expected.items():
        same(target["model"][name], wanted, name)
    # Into nothing, as merging does.
    merged = {}
    _load_state_dict(merged, storage_reader=dcp.FileSystemReader(path), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    assert set(merged) == {"model", "extra"}, set(merged)
    for name, wanted in expected.items():
        same(merged["model"][name], wanted, name)
    assert merged["extra"]["groups"] == [{"lr": 0.25, "betas": (0.9, 0.99)}, {"names": ["a.weight"]}], merged["extra"]

print(f"ok: torch {torch.__version__} read {checked} tensors, each bit for bit")
