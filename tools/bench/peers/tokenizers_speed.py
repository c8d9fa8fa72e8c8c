"""Peer: the tokenizers package on one thread.

  tokenizers_speed.py TOKENIZER_JSON TEXT_FILE

Prints megabytes of text a second: of encoding without offsets, the better of
the text as a whole and in lines, and of decoding.
"""
import os
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
from tokenizers import Tokenizer  # noqa: E402

tokenizer = Tokenizer.from_file(sys.argv[1])
text = open(sys.argv[2], encoding="utf-8").read()
megabytes = len(text.encode()) / 1e6


def speed(call):
    """The best of what fits into a second, and of two at least."""
    best, end, count = float("inf"), time.perf_counter() + 1, 0
    while count < 2 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
        count += 1
    return megabytes / best


def encode(texts):
    return tokenizer.encode_batch_fast(texts, add_special_tokens=False)


lines = text.splitlines(keepends=True)
ids = encode([text])[0].ids
print(f"encode {max(speed(lambda: encode([text])), speed(lambda: encode(lines))):.3f}")
print(f"decode {speed(lambda: tokenizer.decode(ids, skip_special_tokens=False)):.3f}")
