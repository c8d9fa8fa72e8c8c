"""PEFT and tessera load each other's adapters.

peft_adapters.py ADAPT_MODEL MODELS

For each folder of MODELS: an adapter that ADAPT_MODEL has made on two ranks is
loaded by PEFT, and one that PEFT has made (as safetensors and as .bin) by
ADAPT_MODEL; logits must be the same. What ADAPT_MODEL merges, transformers loads
as a plain model with the same logits. Without PEFT nothing is run, and that is
said.
"""
import pathlib
import subprocess
import sys
import tempfile
import warnings

try:
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging
except ImportError as error:
    print(f"NOT RUN: this Python has no PEFT ({error})")
    sys.exit(77)

WAYS = [dict(target_modules="all-linear", r=4, lora_alpha=6),
        dict(r=2, lora_alpha=5, use_rslora=True, lora_dropout=0.25)]  # The default layers.


def load(folder):
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager").eval()


@torch.no_grad()
def compare(model, ours, what):
    theirs = model(torch.arange(3, 27).reshape(2, 12)).logits
    difference = ((theirs - ours).abs().max() / theirs.abs().max()).item()
    assert difference < 1e-5, f"{what}: logits differ by {difference}"


class Program:
    def __init__(self, path, folder, scratch):
        self.path, self.folder, self.scratch = path, folder, scratch

    def run(self, *words):
        subprocess.run([self.path, *map(str, words)], check=True)

    def logits(self, adapter, model=None):
        file = self.scratch / "logits.safetensors"
        self.run("logits", model or self.folder, adapter, file)
        return load_file(file)["logits"]


def compare_ours(program, scratch):
    adapter, merged = scratch / "ours", scratch / "merged"
    program.run("make", program.folder, adapter, 2)
    ours = program.logits(adapter)
    assert not torch.equal(ours, program.logits("-")), "the adapter does nothing"
    adapted = PeftModel.from_pretrained(load(program.folder), adapter)
    compare(adapted, ours, f"{program.folder}: our adapter")
    program.run("merge", program.folder, adapter, merged)
    compare(load(merged), ours, f"{program.folder}: our merged folder")


def compare_theirs(program, scratch):
    for i, way in enumerate(WAYS):
        for safe in (True, False):
            torch.manual_seed(i)
            model = get_peft_model(load(program.folder), LoraConfig(task_type="CAUSAL_LM", **way))
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    torch.nn.init.normal_(parameter, std=0.1)
            adapter = scratch / f"theirs{i}{safe}"
            model.save_pretrained(adapter)
            file = adapter / "adapter_model.safetensors"
            if not safe:  # As older versions wrote it.
                torch.save(load_file(file), adapter / "adapter_model.bin")
                file.unlink()
            compare(model.eval(), program.logits(adapter), f"{adapter}: PEFT's adapter")


def main():
    path, models = sys.argv[1:]
    warnings.simplefilter("ignore")
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    folders = sorted(p.parent for p in pathlib.Path(models).rglob("config.json"))
    assert folders, f"no model in {models}"
    for folder in folders:
        with tempfile.TemporaryDirectory() as temporary:
            scratch = pathlib.Path(temporary)
            program = Program(path, folder, scratch)
            compare_ours(program, scratch)
            compare_theirs(program, scratch)
    print(f"{len(folders)} models, with adapters of both sides")


main()
