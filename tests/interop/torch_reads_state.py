"""torch reads the state of a run that tessera saved, under Accelerate's file names.

python torch_reads_state.py FOLDER   (FOLDER is what write_state wrote; needs torch, safetensors)
"""
import copy
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

checked = 0


def same(actual, wanted, name):
    global checked
    assert actual.dtype == wanted.dtype, (name, actual.dtype, wanted.dtype)
    assert actual.shape == wanted.shape, (name, actual.shape, wanted.shape)
    assert torch.equal(actual.reshape(-1).view(torch.uint8), wanted.reshape(-1).view(torch.uint8)), name
    checked += 1


def load(folder, name):
    return torch.load(os.path.join(folder, name), weights_only=True)


def merged(folder):
    """Everything in a distributed checkpoint, as merging loads it."""
    result = {}
    _load_state_dict(result, storage_reader=dcp.FileSystemReader(folder), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return result


def check_small_files(folder, ranks):
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.AdamW([{"params": [parameter]}, {"params": [torch.nn.Parameter(torch.zeros(2))]}], lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    keys = set(scheduler.state_dict())
    state = load(folder, "scheduler.bin")
    assert keys <= set(state), (keys, set(state))
    scheduler.load_state_dict(state)
    assert scheduler.last_epoch == 3 and scheduler.get_last_lr() == [5e-3, 5e-3]
    scaler = torch.amp.GradScaler("cpu")
    state = load(folder, "scaler.pt")
    assert set(scaler.state_dict()) == set(state), state
    scaler.load_state_dict(state)
    assert scaler.get_scale() == 512 and scaler.state_dict()["_growth_tracker"] == 3
    for rank in range(ranks):
        random = load(folder, f"random_states_{rank}.pkl")
        assert random == {"generator": "philox", "step": 3, "seed": 7, "counters": {"dropout": 11}}, random


def check_optimizer(state, parameters):
    """torch's own optimizer takes it, and goes on."""
    names = [group["params"] for group in state["param_groups"]]
    ids = {name: i for i, name in enumerate(sum(names, []))}
    tensors = {name: torch.nn.Parameter(parameters[name].clone()) for name in ids}
    optimizer = torch.optim.AdamW([{"params": [tensors[name] for name in group]} for group in names])
    own = optimizer.state_dict()["param_groups"][0]
    for group in state["param_groups"]:
        assert set(group) == set(own), set(group) ^ set(own)
    optimizer.load_state_dict({
        "state": {ids[name]: copy.deepcopy(values) for name, values in state["state"].items()},
        "param_groups": [{**group, "params": [ids[name] for name in group["params"]]} for group in state["param_groups"]],
    })
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    for name, tensor in tensors.items():
        tensor.grad = torch.ones_like(tensor)
        assert optimizer.state[tensor]["step"].item() == 3, name
    optimizer.step()


for run in sorted(glob.glob(os.path.join(sys.argv[1], "v*"))):
    ranks = int(run[-1])
    expected = load_file(os.path.join(run, "expected", "model.safetensors"))
    expected["lm_head.weight"] = expected["transformer.wte.weight"]
    full = os.path.join(run, "FULL_STATE_DICT")
    model = load(full, "pytorch_model_fsdp.bin")
    assert set(model) == set(expected), set(model) ^ set(expected)
    for name, tensor in model.items():
        same(tensor, expected[name], name)
    assert model["lm_head.weight"].data_ptr() == model["transformer.wte.weight"].data_ptr()
    optimizer = load(full, "optimizer.bin")
    check_optimizer(optimizer, model)
    check_small_files(full, ranks)

    sharded = os.path.join(run, "SHARDED_STATE_DICT")
    if not os.path.isdir(os.path.join(sharded, "pytorch_model_fsdp_0")):
        sys.exit(f"{sharded} has no pytorch_model_fsdp_0")
    target = {"model": {name: torch.zeros_like(tensor) for name, tensor in expected.items()}}
    dcp.load(target, checkpoint_id=os.path.join(sharded, "pytorch_model_fsdp_0"), no_dist=True)
    for name, tensor in target["model"].items():
        same(tensor, expected[name], name)
    for name, tensor in merged(os.path.join(sharded, "pytorch_model_fsdp_0"))["model"].items():
        same(tensor, model[name], name)
    states = merged(os.path.join(sharded, "optimizer_0"))["optimizer"]
    assert states["param_groups"] == optimizer["param_groups"], states["param_groups"]
    assert set(states["state"]) == set(optimizer["state"])
    for name, values in states["state"].items():
        assert set(values) == {"step", "exp_avg", "exp_avg_sq"}, values
        for state, tensor in values.items():
            same(tensor, optimizer["state"][name][state], f"{name}.{state}")
    check_small_files(sharded, ranks)
    # Files a rank: rows, one rank's after the other's.
    files = [load(sharded + "_files", f"pytorch_model_fsdp_0_rank{rank}.bin") for rank in range(ranks)]
    for name, tensor in expected.items():
        same(torch.cat([file[name] for file in files]), tensor, name)

print(f"ok: torch {torch.__version__} read {checked} tensors, each bit for bit")
