"""Folders of vocab.json and merges.txt give the ids that transformers gives.

    old_tokenizer_folders.py TOKENIZE_LINES [--texts=N] [--seed=N]

TOKENIZE_LINES is the program of tokenize_lines.cc. The golden tokenizers of
GPT-2 and Qwen2 are written as such folders, with what may stand beside, and read
by both sides.
"""
import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
try:
    from transformers import AutoTokenizer

    from compare_tokenizers import random_text
except ImportError as error:
    print(f"NOT RUN: {error}")
    sys.exit(77)

CLASSES = [("gpt2", "GPT2Tokenizer"), ("qwen2", "Qwen2Tokenizer")]
SPECIAL = {"eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>",
           "bos_token": {"content": "<|endoftext|>", "lstrip": False, "normalized": True,
                         "rstrip": False, "single_word": False}}


def configs(class_name, tokenizer):
    """Each a tokenizer_config.json and a special_tokens_map.json."""
    plain = {"tokenizer_class": class_name}
    by_id = {str(token["id"]): {key: value for key, value in token.items() if key != "id"}
             for token in tokenizer["added_tokens"]}
    yield plain, None
    yield {**plain, "added_tokens_decoder": by_id}, None
    yield {**plain, "eos_token": "<|endoftext|>", "add_prefix_space": True}, SPECIAL


def write_folder(folder, tokenizer, config, special):
    model = tokenizer["model"]
    files = {"vocab.json": json.dumps(model["vocab"], ensure_ascii=False),
             "merges.txt": "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in model["merges"]),
             "tokenizer_config.json": json.dumps(config)}
    if special:
        files["special_tokens_map.json"] = json.dumps(special)
    for name, text in files.items():
        pathlib.Path(folder, name).write_text(text, encoding="utf-8")


def compare(program, folder, texts, what):
    theirs = AutoTokenizer.from_pretrained(folder)
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    run = subprocess.run([program, folder], input=lines.encode(), check=True, stdout=subprocess.PIPE)
    rows = run.stdout.decode().split("\n")[:-1]
    assert len(rows) == len(texts), what
    for text, row in zip(texts, rows):
        wanted, got = theirs(text)["input_ids"], json.loads(row)["ids"]
        assert got == wanted, f"{what}: {text!r}:\n wanted {wanted}\n got    {got}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--texts", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    root = os.environ.get("TESSERA_GOLDEN", "tests/golden")
    count = 0
    for name, class_name in CLASSES:
        tokenizer = json.load(open(f"{root}/tokenizers/{name}/tokenizer.json"))
        for config, special in configs(class_name, tokenizer):
            with tempfile.TemporaryDirectory() as folder:
                write_folder(folder, tokenizer, config, special)
                texts = [random_text(rng) for _ in range(args.texts)] + ["<|endoftext|> a"]
                compare(args.program, folder, texts, f"{name} {config}")
                count += 1
    print(f"{count} folders, {args.texts} texts each: equal")


main()
