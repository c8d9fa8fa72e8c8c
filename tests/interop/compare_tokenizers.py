"""Compares ids and texts with the tokenizers package's.

    python compare_tokenizers.py TOKENIZE_LINES [FOLDER...] [--texts=N] [--seed=N] [--train=TRAIN_TOKENIZER]

TOKENIZE_LINES is the program of tokenize_lines.cc. With that of
train_tokenizer.cc, tokenizers that it trains are compared, too. Each FOLDER holds a
tokenizer.json; without one, the golden ones are taken, and variants of them with
every normalizer, pre-tokenizer and decoder that is supported. Texts are random
Unicode (characters that old versions know too), words of English, added tokens
and white space. Ends with an error at the first difference.
"""
import argparse
import glob
import json
import os
import random
import subprocess
import sys
import tempfile
import unicodedata

try:
    from tokenizers import Tokenizer
except ImportError as error:
    print(f"NOT RUN: {error}")
    sys.exit(77)

WORDS = ("the of and to in that it is was I'm we'LL don't naïve café "
         "Straße 東京都 🙂👩‍👩‍👧 12345 3.14 a_b ab-cd ABC İstanbul ﬁ Å ﷺ ½ Ⅷ "
         "zebra zebras <extra> <|endoftext|> <|im_start|> <s> </s> <0x41>").split(" ")
SPACES = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u2003",
          "\u3000", "\u2581", "\u180e", "\u200b", ""]


def known(code):
    """Assigned long ago: its properties are the same in every version."""
    if 0xD800 <= code < 0xE000:
        return False
    c = chr(code)
    return unicodedata.ucd_3_2_0.category(c) == unicodedata.category(c) != "Cn"


# U+0363 to U+036F became alphabetic lately.
CHARACTERS = [chr(c) for c in range(0x20000) if known(c) and not 0x363 <= c < 0x370]


def random_text(rng):
    parts = []
    for _ in range(rng.randrange(12)):
        kind = rng.randrange(6)
        if kind == 0:
            parts += rng.choices(CHARACTERS, k=rng.randrange(1, 8))
        elif kind == 1:
            parts += [chr(rng.randrange(32, 127)) for _ in range(rng.randrange(8))]
        elif kind == 2:
            parts.append(rng.choice("abcdefgh1 .") * rng.randrange(60))
        else:
            parts.append(rng.choice(WORDS))
        parts.append(rng.choice(SPACES))
    return "".join(parts)


def split(regex, behavior, invert=False):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior,
            "invert": invert}


BEHAVIORS = ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext",
             "Contiguous"]
PREFIX = {"type": "Prepend", "prepend": "\u2581"}
NORMALIZERS = [{"type": t} for t in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase")] + [
    PREFIX,
    {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
    {"type": "Replace", "pattern": {"Regex": "\\s+|[aeiou]{2,}"}, "content": " "},
    {"type": "Strip", "strip_left": True, "strip_right": False},
    {"type": "Strip", "strip_left": False, "strip_right": True},
    {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "Lowercase"}]},
    {"type": "StripAccents"},
]
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
              "use_regex": False}
PRE_TOKENIZERS = [
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
     "use_regex": True},
    {"type": "Whitespace"},
    {"type": "WhitespaceSplit"},
    {"type": "Punctuation", "behavior": "MergedWithNext"},
    {"type": "Digits", "individual_digits": False},
    {"type": "Digits", "individual_digits": True},
] + [
    {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": cut}
    for scheme in ("always", "first", "never") for cut in (True, False)
] + [
    split(regex, behavior, invert)
    for regex in ("\\w+|\\s", "[^\\s\\w]+|\\d", "^.|[b-d]{1,2}+|e$|\\h", "x*", "\\S\\s(?=\\S)", "\\b[[:alpha:]]|\\B\\W")
    for behavior in BEHAVIORS for invert in (False, True)
]
DECODERS = [
    None,
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
     "use_regex": True},
    {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
    {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "never", "split": True},
    {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"Regex": "\u2581+"}, "content": "_"},
        {"type": "ByteFallback"},
        {"type": "Strip", "content": "_", "start": 2, "stop": 0}]},
]


def variants(path):
    """The tokenizer itself, and others with one thing changed."""
    base = json.load(open(path))
    # There the scheme "first" puts no mark where a normalizer took away the
    # text's first character; here it does.
    strips = "StripAccents" in json.dumps(base["normalizer"])
    pre_tokenizers = [p for p in PRE_TOKENIZERS
                      if not (strips and p.get("prepend_scheme") == "first")]
    has_bytes = "\u0100" in base["model"]["vocab"]
    yield "as it is", base
    for key, values in (("normalizer", NORMALIZERS), ("pre_tokenizer", pre_tokenizers),
                        ("decoder", DECODERS)):
        for value in values:
            if value and value["type"] == "ByteLevel" and not has_bytes:
                continue
            yield f"{key} {json.dumps(value)}", {**base, key: value}
    for value in pre_tokenizers if has_bytes else []:
        steps = {"type": "Sequence", "pretokenizers": [value, BYTE_LEVEL]}
        yield f"pre_tokenizer {json.dumps(value)}, ByteLevel", {**base, "pre_tokenizer": steps}
    for change in ({"unk_token": None}, {"fuse_unk": False}, {"byte_fallback": False},
                   {"ignore_merges": True}):
        model = {**base["model"], **change}
        yield f"model {change}", {**base, "model": model}
    vocab = {t.replace("<0x8", "<gone "): i for t, i in base["model"]["vocab"].items()}
    model = {**base["model"], "vocab": vocab}
    yield "some byte tokens missing", {**base, "model": model}


def compare(program, path, texts, what):
    theirs = Tokenizer.from_file(path)
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    run = subprocess.run([program, path], input=lines.encode(), capture_output=True)
    if run.returncode != 0:
        sys.exit(f"{what}: {run.stderr.decode()}")
    rows = run.stdout.decode().split("\n")[:-1]
    assert len(rows) == len(texts), what
    for text, row in zip(texts, rows):
        row = json.loads(row)
        ids = theirs.encode(text).ids
        plain = theirs.encode(text, add_special_tokens=False).ids
        wanted = {"ids": ids, "ids_without_special": plain,
                  "decoded": theirs.decode(plain, skip_special_tokens=False),
                  "decoded_skip_special": theirs.decode(ids, skip_special_tokens=True)}
        for key, value in wanted.items():
            if row[key] != value:
                sys.exit(f"{what}: {key} of {text!r}:\n wanted {value!r}\n got    {row[key]!r}")


def compare_trained(program, train, rng, num_texts):
    """The package loads what was trained here, and says the same."""
    with tempfile.TemporaryDirectory() as scratch:
        text, path = os.path.join(scratch, "text"), os.path.join(scratch, "tokenizer.json")
        with open(text, "w") as file:
            file.write(open(__file__).read())
            file.writelines(random_text(rng) + "\n" for _ in range(500))
        for vocab_size in (258, 300, 2000):
            with open(path, "wb") as file:
                subprocess.run([train, text, str(vocab_size)], stdout=file, check=True)
            size = Tokenizer.from_file(path).get_vocab_size()
            assert 258 <= size <= vocab_size, (size, vocab_size)
            texts = [random_text(rng) for _ in range(num_texts)]
            compare(program, path, texts, f"trained, {vocab_size} tokens")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("folders", nargs="*")
    parser.add_argument("--texts", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--train")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    root = os.environ.get("TESSERA_GOLDEN", "tests/golden")
    golden = sorted(glob.glob(os.path.join(root, "tokenizers/*")))
    if not args.folders and not golden:
        sys.exit(f"no folder below {root}/tokenizers; run it in the root of the tree")
    num_compared = 0
    for folder in args.folders or golden:
        path = os.path.join(folder, "tokenizer.json")
        for what, value in [("as it is", None)] if args.folders else variants(path):
            with tempfile.TemporaryDirectory() as scratch:
                tested = path
                if value is not None:
                    tested = os.path.join(scratch, "tokenizer.json")
                    json.dump(value, open(tested, "w"))
                texts = [random_text(rng) for _ in range(args.texts)]
                compare(args.program, tested, texts, f"{folder}: {what}")
                num_compared += 1
    if args.train:
        compare_trained(args.program, args.train, rng, args.texts)
    print(f"{num_compared} tokenizers, {args.texts} texts each: equal")


if __name__ == "__main__":
    main()
