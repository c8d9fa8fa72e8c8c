"""Conversations packed into rows: transformers, which sees each alone, has the same loss.

packed_chats.py TRAIN TOKENIZERS

TRAIN is the program tools/train, TOKENIZERS the folder of golden tokenizers. Ends with 77 where torch or
transformers are missing.
"""

import json
import os
import random
import subprocess
import sys
import tempfile

try:
    import torch
    from transformers import (GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM,
                              PreTrainedTokenizerFast)
except ImportError as error:
    print(error)
    sys.exit(77)

CHAT_ML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
           "'<|im_end|>' + '\n'}}{% endfor %}"
           "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
WORDS = "the of and to in a is that for it was on are as with his they at be this from".split()
LENGTH = 512
TOLERANCE = 2e-5


def random_chats(count):
    """Conversations of one to three turns."""
    def text(most):
        words = random.choices(WORDS, k=random.randint(1, most))
        return " ".join(words) + random.choice([".", "!\n", "?", " 12345"])

    chats = []
    for _ in range(count):
        chat = [{"role": "system", "content": text(5)}] if random.random() < 0.3 else []
        for _ in range(random.randint(1, 3)):
            chat.append({"role": "user", "content": text(8)})
            chat.append({"role": "assistant", "content": text(10)})
        chats.append(chat)
    return chats


def summed_loss(model, tokenizer, chat):
    """The sum over what the assistant says, and of how many tokens."""
    def ids_of(text):
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    ids = ids_of(tokenizer.apply_chat_template(chat, tokenize=False))
    labels = torch.full([len(ids)], -100)
    for index, message in enumerate(chat):
        if message["role"] != "assistant":
            continue
        before = tokenizer.apply_chat_template(chat[:index], tokenize=False, add_generation_prompt=True)
        begin = len(ids_of(before))
        end = len(ids_of(before + message["content"] + "<|im_end|>"))
        labels[begin:end] = torch.tensor(ids[begin:end])
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, :-1].double()
    loss = torch.nn.functional.cross_entropy(logits, labels[1:], reduction="sum")
    return loss.item(), int((labels[1:] >= 0).sum())


def train_once(program, folder, scratch, batch):
    """Losses of one step over `batch` rows and of validation, and what the run said."""
    out = tempfile.mkdtemp(dir=scratch)
    flags = dict(model=folder, data=os.path.join(scratch, "chats.jsonl"), seq=LENGTH, batch=batch, steps=1, lr=0,
                 min_lr=0, weight_decay=0, validation_share=0, eval_batches=100, sample_tokens=0, ranks=2, threads=1,
                 out=out)
    run = subprocess.run([program] + [f"--{name}={value}" for name, value in flags.items()],
                         capture_output=True, text=True, check=False)
    if run.returncode != 0:
        sys.exit(run.stdout + run.stderr)
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as file:
        metrics = json.loads(file.readlines()[-1])
    return metrics["loss"], metrics["validation_loss"], run.stdout


def check(program, tokenizers, name, model, scratch):
    """One model on the conversations in `scratch`."""
    folder = os.path.join(scratch, name)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=f"{tokenizers}/{name}/tokenizer.json")
    tokenizer.chat_template = CHAT_ML
    model.eval().save_pretrained(folder)
    with open(f"{tokenizers}/{name}/tokenizer.json", encoding="utf-8") as file:
        text = file.read()
    for file_name, content in (("tokenizer.json", text),
                               ("tokenizer_config.json", json.dumps({"chat_template": CHAT_ML}))):
        with open(os.path.join(folder, file_name), "w", encoding="utf-8") as file:
            file.write(content)
    with open(os.path.join(scratch, "chats.jsonl"), encoding="utf-8") as file:
        sums = [summed_loss(model, tokenizer, json.loads(line)["messages"]) for line in file]
    said = train_once(program, folder, scratch, 1)[2]
    rows = int(said.split(" rows of")[0].split()[-1])
    loss, validation, _ = train_once(program, folder, scratch, rows)
    # One conversation is for validation: which, its loss says.
    left_out = min(sums, key=lambda pair: abs(pair[0] / pair[1] - validation))
    rest = [sum(pair[i] for pair in sums) - left_out[i] for i in (0, 1)]
    off = max(abs(left_out[0] / left_out[1] - validation), abs(rest[0] / rest[1] - loss))
    print(f"{name}: {len(sums)} conversations in {rows} rows, loss {loss:.6f}, off by {off:.1e}")
    return off < TOLERANCE


def main():
    program, tokenizers = sys.argv[1:]
    random.seed(1)
    torch.manual_seed(1)
    sizes = {name: len(PreTrainedTokenizerFast(tokenizer_file=f"{tokenizers}/{name}/tokenizer.json"))
             for name in ("gpt2", "smollm")}
    models = {
        "gpt2": GPT2LMHeadModel(GPT2Config(vocab_size=sizes["gpt2"], n_positions=LENGTH, n_embd=64, n_layer=2,
                                           n_head=4, initializer_range=0.15, resid_pdrop=0, embd_pdrop=0,
                                           attn_pdrop=0, bos_token_id=0, eos_token_id=0)),
        "smollm": LlamaForCausalLM(LlamaConfig(vocab_size=sizes["smollm"], hidden_size=64, intermediate_size=128,
                                               num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                               max_position_embeddings=LENGTH, initializer_range=0.15)),
    }
    with tempfile.TemporaryDirectory() as scratch:
        with open(os.path.join(scratch, "chats.jsonl"), "w", encoding="utf-8") as file:
            for chat in random_chats(40):
                file.write(json.dumps({"messages": chat}) + "\n")
        passed = [check(program, tokenizers, name, model, scratch) for name, model in models.items()]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
