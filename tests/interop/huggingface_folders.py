"""transformers loads the folders that tessera writes.

huggingface_folders.py REWRITE_FOLDER MODELS

For each folder of MODELS, REWRITE_FOLDER loads it into shards and saves these
as a folder. transformers must find no key missing, none unexpected, the same
tensors, and hence the same logits and greedy tokens. Without transformers
nothing is run, and that is said.
"""
import pathlib
import subprocess
import sys
import tempfile

try:
    import torch
    from transformers import AutoModelForCausalLM
except ImportError as error:
    print(f"NOT RUN: this Python has no transformers ({error})")
    sys.exit(77)

WAYS = [  # Ranks, version, largest file.
    (1, 2, "5GB"),
    (2, 1, "40KB"),
    (3, 2, "20KB"),
]


def load(folder):
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager")
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[kind], f"{folder}: {kind}: {info[kind]}"
    return model.eval()


@torch.no_grad()
def compare(ours, theirs, folder):
    a, b = ours.state_dict(), theirs.state_dict()
    assert a.keys() == b.keys(), f"{folder}: {a.keys() ^ b.keys()}"
    for name in a:
        assert a[name].dtype == b[name].dtype, f"{folder}: {name}"
        assert torch.equal(a[name], b[name]), f"{folder}: {name} differs"
    ids = torch.arange(3, 27).reshape(2, 12)
    assert torch.equal(ours(ids).logits, theirs(ids).logits), f"{folder}: logits"
    greedy = dict(max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert torch.equal(ours.generate(ids, **greedy), theirs.generate(ids, **greedy)), folder


def main():
    program, models = sys.argv[1:]
    torch.set_num_threads(1)
    folders = sorted(p.parent for p in pathlib.Path(models).rglob("config.json"))
    assert folders, f"no model in {models}"
    for folder in folders:
        theirs = load(folder)
        for ranks, version, size in WAYS:
            with tempfile.TemporaryDirectory() as out:
                subprocess.run([program, folder, out, str(ranks), str(version), size],
                               check=True)
                compare(load(out), theirs, folder)
    print(f"{len(folders)} folders, each written in {len(WAYS)} ways")


main()
