#!/usr/bin/python3
"""Makes families.golden: the results of Hugging Face's transformers for tiny models of every family.

    python3 -m venv somewhere && somewhere/bin/pip install torch transformers
    somewhere/bin/python make_family_golden.py families.golden

The file was made with transformers 5.23 and torch 2.15 on a CPU. Others may give other last digits.

A case is a config.json and a sequence length (CASES). The file contains the text of the config.json, which
both transformers and tidepool read. Params and tokens come from an integer hash (number() below), which
tests/golden/golden_hash.h repeats bit for bit, so the file contains only texts and results. A batch has 8
sequences; AdamW trains on it for 20 steps.

The models run unpatched in float64, and this script computes the loss from their logits. transformers' own
code still computes two things in float32: the angles of rotary positions with their cosines and sines, and
the output of an RMS norm. To measure the effect, formulation() below repeats the networks from the papers'
formulas, in float64 throughout. The script prints by how much losses and gradients differ (at most 5e-9 and
8e-7) and fails from 5e-6 on. GPT-2 is not compared here, since make_gpt2_golden.py has its formulas.

families.golden, little endian:
    8 bytes   "TIDEFAMS"
    uint32    version 1, training steps, sequences of a batch, cases
    and of each case
    32 bytes  its name, padded with zeros
    uint32    bytes of its config.json, tokens of a sequence, tensors
    the text of config.json
    float64   [steps] loss before each step's update; [steps] gradient norm before clipping
    and of each tensor, in transformers' order; item n of the hash gives the values of tensor n
    64 bytes  its name in files, padded with zeros
    uint32    elements
    float32   [elements] gradient of step 0, unclipped (an embedding's with the tied head's)
"""

import json
import math
import struct
import sys

import numpy as np
import torch
import torch.nn.functional as F
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

SEQUENCES, STEPS, WARMUP = 8, 20, 4
LR, LR_MIN, DECAY, CLIP = 1e-2, 1e-3, 0.1, 1.0
BETAS, EPSILON = (0.9, 0.95), 1e-8
TOKENS_ITEM = 1000
SPREAD = 0.5


def shape(layers, width, heads, kv_heads, mlp, vocabulary, context=64, **others):
    """Fields of config.json that all families except GPT-2 have."""
    return {"hidden_act": "silu", "num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads,
            "num_key_value_heads": kv_heads, "intermediate_size": mlp, "vocab_size": vocabulary,
            "max_position_embeddings": context, "rms_norm_eps": 1e-5, **others}


def llama(*sizes, **others):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **shape(*sizes, **others)}


def mistral(*sizes, **others):
    return {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None, **shape(*sizes, **others)}


def qwen2(*sizes, **others):
    return {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "use_sliding_window": False, **shape(*sizes, **others)}


def qwen3(*sizes, **others):
    return {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "use_sliding_window": False, **shape(*sizes, **others)}


# (name, tokens of a sequence, config.json). transformers 4 wrote rope_theta, rope_scaling and torch_dtype,
# transformers 5 writes rope_parameters and dtype. The cases with llama3 and yarn keep some frequencies,
# divide some and mix some. Each family except GPT-2 has cases with 1, 2 and 8 queries a key, with a tied and
# an untied head, with heads of another width than width / heads, and with all four kinds of positions. All
# families together have each kind of positions with 1, 2 and 8 queries a key and with both kinds of head. No
# case enlarges rounding errors: if every weight is changed by 6e-8, transformers' own norms change by at most
# 3e-6 in the 20 steps. (A Qwen3 of width 17 with three heads of width 6 was left out because its norm changed
# by 1e-4 in one step.)
CASES = (
    ("gpt2", 21, {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new", "n_layer": 1,
                  "n_embd": 20, "n_head": 2, "n_positions": 24, "n_ctx": 24, "vocab_size": 67, "layer_norm_epsilon": 1e-5,
                  "bos_token_id": None, "eos_token_id": None}),
    ("llama", 19, llama(2, 24, 4, 2, 34, 91, tie_word_embeddings=True, rope_theta=10000.0, rope_scaling=None,
                        torch_dtype="float32")),
    ("llama-odd", 19, llama(2, 36, 3, 3, 37, 75, head_dim=10, tie_word_embeddings=False, attention_bias=True, mlp_bias=True,
                            rope_parameters={"rope_type": "default", "rope_theta": 500.0}, dtype="float32")),
    ("llama-linear", 23, llama(2, 24, 8, 1, 26, 67, head_dim=4, tie_word_embeddings=True, rope_theta=300.0,
                               rope_scaling={"type": "linear", "factor": 2.5}, torch_dtype="bfloat16")),
    ("llama-llama3", 24, llama(2, 20, 2, 1, 28, 67, head_dim=16, tie_word_embeddings=False, rope_theta=10000.0,
                               rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                             "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
                               torch_dtype="bfloat16")),
    ("llama-llama3-parameters", 24, llama(1, 20, 2, 1, 28, 67, head_dim=16, tie_word_embeddings=True,
                                          rope_parameters={"rope_type": "llama3", "rope_theta": 2000.0, "factor": 4.0,
                                                           "low_freq_factor": 1.0, "high_freq_factor": 3.0,
                                                           "original_max_position_embeddings": 40}, dtype="bfloat16")),
    ("llama-yarn", 24, llama(1, 20, 2, 1, 28, 67, 80, head_dim=16, tie_word_embeddings=True,
                             rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
                                              "original_max_position_embeddings": 20}, dtype="float32")),
    ("llama-yarn-exact", 24, llama(1, 20, 2, 1, 28, 67, 24, head_dim=16, tie_word_embeddings=True, rope_theta=500.0,
                                   rope_scaling={"rope_type": "yarn", "factor": 3.0, "beta_fast": 2.0, "beta_slow": 0.1,
                                                 "truncate": False, "attention_factor": 0.8}, torch_dtype="float32")),
    ("mistral", 19, mistral(2, 24, 4, 2, 34, 67, head_dim=10, tie_word_embeddings=False,
                            rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, dtype="float32")),
    ("qwen2", 19, qwen2(2, 24, 8, 1, 34, 67, head_dim=6, tie_word_embeddings=True, rope_theta=10000.0,
                        torch_dtype="float32")),
    ("qwen2-yarn", 24, qwen2(2, 20, 2, 1, 28, 67, 96, head_dim=16, tie_word_embeddings=False, rope_theta=500.0,
                             rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24, "beta_fast": 2,
                                           "beta_slow": 0.1, "mscale": 1.5, "mscale_all_dim": 0.7}, torch_dtype="float32")),
    ("qwen3", 19, qwen3(2, 20, 4, 2, 30, 67, head_dim=12, tie_word_embeddings=True,
                        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, dtype="float32")),
    ("qwen3-odd", 17, qwen3(2, 26, 3, 1, 31, 67, head_dim=14, tie_word_embeddings=False, attention_bias=True,
                            rope_theta=1000.0, rope_scaling=None, torch_dtype="float32")),
    ("mistral-linear", 18, mistral(2, 17, 4, 2, 23, 59, head_dim=6, tie_word_embeddings=True, rope_theta=300.0,
                                   rope_scaling={"rope_type": "linear", "factor": 3.0}, torch_dtype="bfloat16")),
    ("mistral-llama3", 20, mistral(2, 19, 16, 2, 21, 59, head_dim=8, tie_word_embeddings=False,
                                   rope_parameters={"rope_type": "llama3", "rope_theta": 500.0, "factor": 6.0,
                                                    "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                                    "original_max_position_embeddings": 48}, dtype="float32")),
    ("mistral-yarn", 20, mistral(2, 21, 3, 3, 25, 59, 60, head_dim=8, tie_word_embeddings=True,
                                 rope_parameters={"rope_type": "yarn", "rope_theta": 500.0, "factor": 3.0, "beta_fast": 2.0,
                                                  "beta_slow": 0.1, "truncate": False,
                                                  "original_max_position_embeddings": 20}, dtype="float32")),
    ("qwen2-linear", 18, qwen2(2, 18, 3, 3, 23, 59, tie_word_embeddings=False,
                               rope_parameters={"rope_type": "linear", "rope_theta": 300.0, "factor": 2.5}, dtype="bfloat16")),
    ("qwen2-llama3", 20, qwen2(2, 19, 4, 2, 27, 59, head_dim=8, tie_word_embeddings=True, rope_theta=500.0,
                               rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                             "high_freq_factor": 4.0, "original_max_position_embeddings": 48},
                               torch_dtype="bfloat16")),
    ("qwen3-linear", 18, qwen3(2, 21, 3, 3, 23, 59, head_dim=10, tie_word_embeddings=True,
                               rope_parameters={"rope_type": "linear", "rope_theta": 300.0, "factor": 2.5}, dtype="float32")),
    ("qwen3-llama3", 20, qwen3(2, 19, 3, 3, 21, 59, head_dim=8, tie_word_embeddings=False,
                               rope_parameters={"rope_type": "llama3", "rope_theta": 500.0, "factor": 6.0,
                                                "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                                "original_max_position_embeddings": 48}, dtype="bfloat16")),
    ("qwen3-yarn", 20, qwen3(2, 19, 16, 2, 21, 59, 80, head_dim=8, tie_word_embeddings=False, rope_theta=500.0,
                             rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 20,
                                           "beta_fast": 2.0, "beta_slow": 0.1}, torch_dtype="float32")),
    # With a padding token: its embedding gets a gradient only from a tied head; -1 counts from the end.
    # eval() turns dropout off.
    ("llama-padding", 18, llama(1, 18, 3, 1, 22, 59, tie_word_embeddings=True, rope_theta=10000.0, pad_token_id=7,
                                attention_dropout=0.1, torch_dtype="float32")),
    ("qwen2-padding", 18, qwen2(1, 18, 3, 3, 22, 59, tie_word_embeddings=False, rope_theta=10000.0, pad_token_id=-1,
                                torch_dtype="float32")),
    # With attention windows as long as the sequence, which thus hide nothing.
    ("mistral-window", 20, mistral(1, 18, 3, 1, 22, 59, head_dim=8, tie_word_embeddings=True, rope_theta=10000.0,
                                   sliding_window=20, torch_dtype="float32")),
    ("qwen3-window", 20, qwen3(1, 18, 3, 1, 22, 59, head_dim=8, tie_word_embeddings=False, rope_theta=10000.0,
                               use_sliding_window=True, sliding_window=20, max_window_layers=0, torch_dtype="float32")),
)


def number(item, count):
    """The hashes of (item, 0) to (item, count - 1), as uint32."""
    x = np.arange(count, dtype=np.uint64) * 2654435761 + item * 2246822519 + 374761393
    x &= 0xFFFFFFFF
    x ^= x >> 15
    x = x * 2246822519 & 0xFFFFFFFF
    x ^= x >> 13
    x = x * 3266489917 & 0xFFFFFFFF
    return x ^ (x >> 16)


def centred(item, count):
    """The hashes as fp32 numbers in [-0.5, 0.5), multiples of 2^-24."""
    return (number(item, count) >> 8).astype(np.float32) / np.float32(1 << 24) - np.float32(0.5)


def values(item, name, param):
    """Initial values of a param: around 1 for weights of norms, around 0 for others."""
    found = centred(item, param.numel()) * np.float32(SPREAD)
    if param.dim() == 1 and name.endswith("weight"):
        found = np.float32(1) + found
    return torch.tensor(found.astype(np.float64).reshape(param.shape))


def make_model(text):
    fields = json.loads(text)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[fields["model_type"]].from_dict(fields), dtype=torch.float32)
    model.eval().double()  # eval() turns dropout off
    params = {name.removeprefix("transformer."): param for name, param in model.named_parameters()}
    with torch.no_grad():
        for item, (name, param) in enumerate(params.items()):
            param.copy_(values(item, name, param))
    return model, params


def make_batch(seq_len, vocabulary):
    tokens = (number(TOKENS_ITEM, SEQUENCES * seq_len + 1) % vocabulary).astype(np.int64)
    return torch.tensor(tokens[:-1].reshape(SEQUENCES, seq_len)), torch.tensor(tokens[1:].reshape(-1))


def learning_rate(step):
    if step < WARMUP:
        return LR * (step + 1) / WARMUP
    progress = (step - WARMUP) / (STEPS - 1 - WARMUP)
    return LR_MIN + 0.5 * (1 + math.cos(math.pi * progress)) * (LR - LR_MIN)


def train(model, params, inputs, targets):
    decayed = [param for param in params.values() if param.dim() == 2]
    others = [param for param in params.values() if param.dim() == 1]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPSILON)
    losses, norms, gradients = [], [], None
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.zero_grad()
        logits = model(input_ids=inputs, use_cache=False).logits
        assert logits.dtype == torch.float64
        loss = F.cross_entropy(logits.view(len(targets), -1), targets)
        loss.backward()
        if gradients is None:
            gradients = {name: param.grad.detach().numpy().copy() for name, param in params.items()}
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(list(params.values()), CLIP).item())
        optimizer.step()
    return losses, norms, gradients


# --- the same networks, from the formulas ---


def frequencies(fields, width):
    """The frequencies of rotary positions, and the factor for their cosines and sines."""
    rope = fields.get("rope_parameters") or {"rope_theta": fields["rope_theta"], **(fields.get("rope_scaling") or {})}
    kind = rope.get("rope_type", rope.get("type", "default"))
    theta, factor = rope["rope_theta"], rope.get("factor")
    original = rope.get("original_max_position_embeddings", fields["max_position_embeddings"])
    plain = [theta ** (-2 * i / width) for i in range(width // 2)]
    if kind == "linear":
        return [f / factor for f in plain], 1
    if kind == "llama3":
        def scaled(f):
            turns = original * f / (2 * math.pi)  # over the original context length
            share = (turns - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
            share = min(max(share, 0), 1)
            return share * f + (1 - share) * f / factor
        return [scaled(f) for f in plain], 1
    if kind == "yarn":
        def dimension(turns):
            return width * math.log(original / (2 * math.pi * turns)) / (2 * math.log(theta))
        low, high = dimension(rope.get("beta_fast", 32)), dimension(rope.get("beta_slow", 1))
        if rope.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, width - 1)
        ramp = [min(max((i - low) / (high - low), 0), 1) for i in range(width // 2)]
        grown = [0.1 * scale * math.log(factor) + 1 for scale in (rope.get("mscale", 1), rope.get("mscale_all_dim"), 1) if scale]
        size = grown[0] / grown[1] if "mscale" in rope else grown[0]
        return [f * (1 - r) + f / factor * r for f, r in zip(plain, ramp)], rope.get("attention_factor", size)
    return plain, 1


def formulation(fields, p, inputs, targets):
    """The loss in float64, for all families except GPT-2."""
    heads, kv_heads = fields["num_attention_heads"], fields["num_key_value_heads"]
    width = fields.get("head_dim") or fields["hidden_size"] // heads
    length = inputs.shape[1]
    turns, size = frequencies(fields, width)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * torch.tensor(turns, dtype=torch.float64)
    cosine, sine = (angles.cos() * size)[:, None], (angles.sin() * size)[:, None]

    def norm(name, x):
        return x / (x.pow(2).mean(-1, keepdim=True) + fields["rms_norm_eps"]).sqrt() * p[name + ".weight"]

    def linear(name, x):
        return F.linear(x, p[name + ".weight"], p.get(name + ".bias"))

    def part(prefix, kind, x, count, turned):
        y = linear(f"{prefix}{kind}_proj", x).view(SEQUENCES, length, count, width)
        if turned and f"{prefix}{kind}_norm.weight" in p:
            y = norm(f"{prefix}{kind}_norm", y)
        if turned:
            a, b = y[..., : width // 2], y[..., width // 2 :]
            y = torch.cat((a * cosine - b * sine, b * cosine + a * sine), -1)
        return y

    embedding, padding = p["model.embed_tokens.weight"], fields.get("pad_token_id")
    x = embedding[inputs]
    if padding is not None:  # the padding token's input gives no gradient
        x = torch.where((inputs == padding % fields["vocab_size"])[..., None], embedding.detach()[inputs], x)
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    for i in range(fields["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        at, h = layer + "self_attn.", norm(layer + "input_layernorm", x)
        q, k, v = (part(at, kind, h, count, kind != "v") for kind, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)))
        mixed = []
        for head in range(heads):
            group = head // (heads // kv_heads)
            scores = q[:, :, head] @ k[:, :, group].transpose(1, 2) / math.sqrt(width)
            mixed.append(scores.masked_fill(future, -math.inf).softmax(-1) @ v[:, :, group])
        x = x + linear(at + "o_proj", torch.cat(mixed, -1))
        h, mlp = norm(layer + "post_attention_layernorm", x), layer + "mlp."
        x = x + linear(mlp + "down_proj", F.silu(linear(mlp + "gate_proj", h)) * linear(mlp + "up_proj", h))
    head = p.get("lm_head.weight", p["model.embed_tokens.weight"])
    return F.cross_entropy((norm("model.norm", x) @ head.T).view(len(targets), -1), targets)


def distances(fields, params, inputs, targets, loss, gradients):
    """The relative differences of transformers' loss and gradients from those of formulation()."""
    own = {name: values(item, name, param).requires_grad_() for item, (name, param) in enumerate(params.items())}
    truth = formulation(fields, own, inputs, targets)
    truth.backward()
    apart = [np.linalg.norm(gradients[name] - param.grad.numpy()) / np.linalg.norm(param.grad.numpy())
             for name, param in own.items()]
    return abs(loss / truth.item() - 1), max(apart)


def write_case(file, name, seq_len, fields):
    text = json.dumps(fields, indent=2)
    model, params = make_model(text)
    inputs, targets = make_batch(seq_len, fields["vocab_size"])
    assert fields.get("pad_token_id") is None or (inputs == fields["pad_token_id"] % fields["vocab_size"]).any(), name
    losses, norms, gradients = train(model, params, inputs, targets)
    apart = (0, 0)
    if fields["model_type"] != "gpt2":
        apart = distances(fields, params, inputs, targets, losses[0], gradients)
        assert max(apart) < 5e-6, (name, apart)
    file.write(struct.pack("<32s3I", name.encode(), len(text), seq_len, len(gradients)) + text.encode())
    file.write(struct.pack(f"<{2 * STEPS}d", *losses, *norms))
    for tensor, gradient in gradients.items():
        file.write(struct.pack("<64sI", tensor.encode(), gradient.size) + gradient.astype("<f4").tobytes())
    print(f"{name:24} losses {losses[0]:.4f} {losses[-1]:.4f} norms {norms[0]:.4f} {norms[-1]:.4f}, from the formulas"
          f" {apart[0]:.1e} {apart[1]:.1e}")


def main(path):
    torch.manual_seed(0)
    with open(path, "wb") as file:
        file.write(b"TIDEFAMS" + struct.pack("<4I", 1, STEPS, SEQUENCES, len(CASES)))
        for case in CASES:
            write_case(file, *case)


if __name__ == "__main__":
    main(*sys.argv[1:])
