"""What generate.cc times, by transformers: MODEL PROMPT TOKENS THREADS ROUNDS."""
import sys
import time

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation.streamers import BaseStreamer


class FirstToken(BaseStreamer):
    """Notes when the first new token comes."""

    def __init__(self):
        self.calls, self.time = 0, None

    def put(self, value):
        self.calls += 1
        if self.calls == 2:  # The first call has the prompt.
            self.time = time.perf_counter()

    def end(self):
        pass


@torch.inference_mode()
def main():
    folder, prompt, tokens, threads, rounds = sys.argv[1:]
    torch.set_num_threads(int(threads))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    inputs = AutoTokenizer.from_pretrained(folder)(prompt, return_tensors="pt")
    length = inputs.input_ids.shape[1]
    for _ in range(int(rounds)):
        first = FirstToken()
        begin = time.perf_counter()
        out = model.generate(**inputs, max_new_tokens=int(tokens), do_sample=False,
                             eos_token_id=None, pad_token_id=0, streamer=first)
        end = time.perf_counter()
        ids = out[0, length:].tolist()
        print(f"RESULT prompt {length} first {first.time - begin:.4f} s rest "
              f"{end - first.time:.4f} s tokens {len(ids)} ids {','.join(map(str, ids))}",
              flush=True)


main()
