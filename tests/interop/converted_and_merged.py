"""What convert and merge_weights write, torch reads; what torch writes, they read.

converted_and_merged.py CONVERT MERGE_WEIGHTS MODELS

Each folder of MODELS goes into every format. torch loads .bin files and
distributed checkpoints, equal to the bit; each comes back to safetensors as it
was. Distributed checkpoints that torch wrote, of a model and of an optimizer,
are merged to what torch itself makes of them. Without torch nothing is run, and
that is said.
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import warnings

try:
    import torch
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import load_file
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
except ImportError as error:
    print(f"NOT RUN: this Python has no torch ({error})")
    sys.exit(77)

CONVERT, MERGE = sys.argv[1:3]
warnings.filterwarnings("ignore", message="torch.distributed is disabled")
SUFFIXES = (".bin", ".safetensors")
checked = 0


def run(*words):
    subprocess.run([*map(str, words)], check=True, stdout=subprocess.DEVNULL)


def convert(source, target, kind, *more):
    run(CONVERT, f"--from={source}", f"--to={target}", f"--format={kind}", *more)
    return target


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
        as_bytes = [x.contiguous().reshape(-1).view(torch.uint8) for x in (actual, wanted)]
        assert torch.equal(*as_bytes), where
        checked += 1
    else:
        assert actual == wanted and type(actual) is type(wanted), (where, actual, wanted)


def load_folder(folder):
    """All weights of a folder in safetensors or .bin files, one or many."""
    indices = list(folder.glob("*.index.json"))
    if indices:
        names = sorted(set(json.loads(indices[0].read_text())["weight_map"].values()))
        assert len(names) > 1, indices
    else:
        names = [p.name for p in folder.iterdir() if p.stem in ("model", "pytorch_model", "optimizer") and p.suffix in SUFFIXES]
    tensors = {}
    for name in names:
        path = folder / name
        tensors.update(load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=True))
    return tensors


def load_distributed(folder, scratch):
    dcp_to_torch_save(folder, scratch / "whole.pt")
    return torch.load(scratch / "whole.pt", weights_only=True)


def check_conversions(model, wanted, scratch):
    ways = {"one_bin": ("bin",), "bins": ("bin", "--max_shard_size=40KB"), "torch": ("torch",),
            "files": ("safetensors", "--max_shard_size=40KB"), "native": ("native",)}
    for name, way in ways.items():
        folder = convert(model, scratch / name, *way)
        if way[0] in ("bin", "safetensors"):
            same(load_folder(folder), wanted, folder)
        elif way[0] == "torch":
            same(load_distributed(folder, scratch)["model"], wanted, folder)
        back = convert(folder, scratch / f"{name}_back", "safetensors")
        same(load_folder(back), wanted, back)
    half = {k: v.bfloat16() for k, v in wanted.items()}
    same(load_folder(convert(model, scratch / "half", "bin", "--dtype=bfloat16")), half, "bfloat16")
    if json.loads((model / "config.json").read_text())["model_type"] == "gpt2":
        file = convert(model, scratch / "llmc.bin", "llmc")
        same(load_folder(convert(file, scratch / "llmc_back", "safetensors")), wanted, file)


def check_merges(wanted, scratch):
    folder = scratch / "theirs"
    dcp.save({"model": wanted}, checkpoint_id=folder, no_dist=True)
    for more, what in ((), "merged"), (("--max_shard_size=40KB",), "merged_files"), \
            (("--unsafe_serialization",), "merged_bin"):
        run(MERGE, folder, scratch / what, *more)
        same(load_folder(scratch / what), wanted, what)
    parameters = [torch.nn.Parameter(v.clone()) for v in wanted.values() if v.is_floating_point()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    folder = scratch / "optimizer_0"
    dcp.save({"optimizer": optimizer.state_dict()}, checkpoint_id=folder, no_dist=True)
    run(MERGE, folder, scratch / "merged_optimizer", "--unsafe_serialization")
    files = list((scratch / "merged_optimizer").glob("*.bin"))
    assert len(files) == 1, files
    merged = torch.load(files[0], weights_only=True)
    theirs = load_distributed(folder, scratch)
    same(merged.get("optimizer", merged), theirs["optimizer"], "optimizer")


for model in sorted(p for p in pathlib.Path(sys.argv[3]).iterdir() if p.is_dir()):
    with tempfile.TemporaryDirectory() as scratch:
        wanted = load_folder(model)
        check_conversions(model, wanted, pathlib.Path(scratch))
        check_merges(wanted, pathlib.Path(scratch))
    print(f"{model.name}: equal")
assert checked > 0, "no models"
print(f"converted_and_merged: {checked} tensors equal")
