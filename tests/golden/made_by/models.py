"""Tiny Hugging Face models with logits, gradients and ten training steps.

python models.py OUT   (needs torch, transformers, safetensors; CPU, float32, one thread)
"""
import argparse, json, os, shutil
import torch
from safetensors.torch import save_file
from transformers import (GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM,
                          Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM)

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
ap = argparse.ArgumentParser(); ap.add_argument("out"); a = ap.parse_args()
llama = dict(hidden_size=32, intermediate_size=72, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             vocab_size=160, max_position_embeddings=64, rms_norm_eps=1e-5, attn_implementation="eager", bos_token_id=1, eos_token_id=2)
models = {
    "gpt2": (GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=160, n_positions=64, attn_pdrop=0., embd_pdrop=0., resid_pdrop=0., bos_token_id=159, eos_token_id=159, attn_implementation="eager"), GPT2LMHeadModel),
    "llama": (LlamaConfig(**llama, tie_word_embeddings=False), LlamaForCausalLM),
    "llama3_rope": (LlamaConfig(**{**llama, "max_position_embeddings": 128}, tie_word_embeddings=True, head_dim=8, rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}), LlamaForCausalLM),
    "mistral": (MistralConfig(**llama, sliding_window=8, tie_word_embeddings=False), MistralForCausalLM),
    "qwen2": (Qwen2Config(**llama, tie_word_embeddings=True), Qwen2ForCausalLM),
    "qwen3": (Qwen3Config(**llama, head_dim=16, tie_word_embeddings=True), Qwen3ForCausalLM),
}
for i, (name, (config, cls)) in enumerate(models.items()):
    folder = os.path.join(a.out, name); shutil.rmtree(folder, ignore_errors=True); os.makedirs(folder)
    torch.manual_seed(100 + i)
    model = cls(config).float().eval()
    with torch.no_grad():                      # make biases and norms count
        for n, p in model.named_parameters():
            p.add_(torch.randn_like(p) * (0.05 if p.dim() == 1 else 0.02))
    if name == "llama": model.save_pretrained(folder, max_shard_size="40KB")
    else: model.save_pretrained(folder)
    g = torch.Generator().manual_seed(7 + i)
    V = config.vocab_size
    ids = torch.randint(3, V, (2, 24), generator=g); labels = ids.clone(); labels[0, :5] = -100; labels[1, -3:] = -100
    out = model(input_ids=ids, labels=labels, use_cache=False)
    out.loss.backward()
    tensors = {"input_ids": ids, "labels": labels, "logits": out.logits.detach().contiguous(), "loss": out.loss.detach().reshape(1)}
    tensors.update({"grad/" + n: p.grad.clone().contiguous() for n, p in model.named_parameters()})
    with torch.no_grad():
        tensors["greedy"] = model.generate(ids[:1, :6], attention_mask=torch.ones(1, 6, dtype=torch.long), max_new_tokens=16, do_sample=False, eos_token_id=None, pad_token_id=0)
    save_file(tensors, os.path.join(folder, "expected.safetensors"))
    model.zero_grad(set_to_none=True)
    decay = [p for p in model.parameters() if p.dim() >= 2]; rest = [p for p in model.parameters() if p.dim() < 2]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
    losses, norms, batches = [], [], []
    pair = [torch.randint(3, V, (4, 16), generator=g) for _ in range(2)]      # two batches in turn, so that the loss falls
    for step in range(10):
        b = pair[step % 2]; batches.append(b)
        loss = model(input_ids=b, labels=b, use_cache=False).loss
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))); losses.append(float(loss))
        opt.step(); opt.zero_grad(set_to_none=True)
    final = {"batches": torch.stack(batches)}
    final.update({"param/" + n: p.detach().clone().contiguous() for n, p in model.named_parameters()})
    save_file(final, os.path.join(folder, "trained.safetensors"))
    json.dump({"losses": losses, "grad_norms": norms, "lr": 1e-2, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": "0.1 on tensors of 2 or more dims, 0 on the rest",
               "max_norm": 1.0, "note": "batch k is batches[k]; labels = input_ids, shifted by the model; grad_norms are before clipping; trained.safetensors holds the parameters after step 10"},
              open(os.path.join(folder, "training.json"), "w"), indent=1)
    print(name, sum(p.numel() for p in model.parameters()), losses[0], losses[-1])
