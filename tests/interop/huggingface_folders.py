"""transformers loads the folders that tessera writes.

huggingface_folders.py REWRITE_FOLDER MODELS

For each folder of MODELS, REWRITE_FOLDER loads it into shards and saves these
as a folder. transformers must find no key missing, none unexpected, the same
tensors, and hence the same logits and greedy tokens. The same of each model
that is tied, with a head of its own in the file beside a config that ties it.
Without transformers nothing is run, and that is said.
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

try:
    import torch
    from safetensors.torch import save_file
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


def with_own_head(folder, to):
    """A copy of the folder, whose weights are not tied; nothing if they were not."""
    model = load(folder)
    if not model.config.tie_word_embeddings:
        return None
    shutil.copy(folder / "config.json", to)
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tensors["lm_head.weight"] = tensors["lm_head.weight"].flip(0).contiguous()
    save_file(tensors, to / "model.safetensors", metadata={"format": "pt"})
    return to


def check(program, folder):
    theirs = load(folder)
    for ranks, version, size in WAYS:
        with tempfile.TemporaryDirectory() as out:
            subprocess.run([program, folder, out, str(ranks), str(version), size],
                           check=True)
            compare(load(out), theirs, folder)


def main():
    program, models = sys.argv[1:]
    torch.set_num_threads(1)
    folders = sorted(p.parent for p in pathlib.Path(models).rglob("config.json"))
    assert folders, f"no model in {models}"
    untied = 0
    for folder in folders:
        check(program, folder)
        with tempfile.TemporaryDirectory() as to:
            if with_own_head(folder, pathlib.Path(to)):
                check(program, to)
                untied += 1
    assert untied > 0, "no model is tied"
    print(f"{len(folders)} folders, and {untied} with heads of their own, each written in {len(WAYS)} ways")


main()
