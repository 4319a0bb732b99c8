#!/usr/bin/python3
"""Makes gpt2.golden and frozen.golden: PyTorch's results for a small GPT-2. Debian's python3-torch suffices.

The model has two layers, width 64, 4 heads, context 32 and vocabulary 128, and a batch has 8 sequences of 32
tokens. Params and tokens come from an integer hash (number() below), which tests/golden/golden_hash.h repeats
bit for bit, so the files contain only results. All arithmetic is float64, so the goldens' own error is
negligible compared with fp32's.

gpt2.golden, little endian:
    8 bytes   "TIDEGOLD"
    uint32    version 1, training steps, params (tensors)
    float64   [steps] loss before each step's update; [steps] gradient norm before clipping
    float32   gradients of step 0, unclipped, tensor after tensor in creation order (wte's with the head's)

frozen.golden: the same run with requires_grad = False for some params, once for each set in FROZEN:
    8 bytes   "TIDEFROZ"
    uint32    version 1, training steps, sets
    and of each set
    uint32    number of frozen params (tensors)
    float64   [steps] losses, [steps] norms, as in gpt2.golden
    float32   64 weights of each trained param after the last step, at equal distances from the first on

    ./make_gpt2_golden.py gpt2.golden frozen.golden
"""

import fnmatch
import math
import struct
import sys

import numpy as np
import torch
import torch.nn.functional as F

LAYERS, WIDTH, HEADS, CONTEXT, VOCABULARY = 2, 64, 4, 32, 128
SEQUENCES, STEPS, WARMUP = 8, 20, 4
LR, LR_MIN, DECAY, CLIP = 1e-2, 1e-3, 0.1, 1.0
BETAS, EPSILON = (0.9, 0.95), 1e-8
TOKENS_ITEM = 1000
# The same sets as golden_sets in gpt2_golden.c: the embeddings and thus the tied head; all but the last
# block; only wte with the tied head; various params.
FROZEN = (("w?e.weight",), ("w?e.weight", "h.0.*", "ln_f.*"), ("wte.weight",), ("*.bias", "h.1.ln_*", "h.0.mlp.c_fc.weight"))
SAMPLES = 64


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


def shapes():
    """Name and shape of every param, in creation order."""
    yield "wte.weight", (VOCABULARY, WIDTH)
    yield "wpe.weight", (CONTEXT, WIDTH)
    for i in range(LAYERS):
        yield f"h.{i}.ln_1.weight", (WIDTH,)
        yield f"h.{i}.ln_1.bias", (WIDTH,)
        yield f"h.{i}.attn.c_attn.weight", (WIDTH, 3 * WIDTH)
        yield f"h.{i}.attn.c_attn.bias", (3 * WIDTH,)
        yield f"h.{i}.attn.c_proj.weight", (WIDTH, WIDTH)
        yield f"h.{i}.attn.c_proj.bias", (WIDTH,)
        yield f"h.{i}.ln_2.weight", (WIDTH,)
        yield f"h.{i}.ln_2.bias", (WIDTH,)
        yield f"h.{i}.mlp.c_fc.weight", (WIDTH, 4 * WIDTH)
        yield f"h.{i}.mlp.c_fc.bias", (4 * WIDTH,)
        yield f"h.{i}.mlp.c_proj.weight", (4 * WIDTH, WIDTH)
        yield f"h.{i}.mlp.c_proj.bias", (WIDTH,)
    yield "ln_f.weight", (WIDTH,)
    yield "ln_f.bias", (WIDTH,)


def make_params():
    params = {}
    for item, (name, shape) in enumerate(shapes()):
        values = centred(item, int(np.prod(shape))) * np.float32(0.25)
        if ".ln_" in "." + name and name.endswith("weight"):
            values = np.float32(1) + values
        params[name] = torch.tensor(values.astype(np.float64).reshape(shape), requires_grad=True)
    return params


def make_batch():
    tokens = (number(TOKENS_ITEM, SEQUENCES * CONTEXT + 1) % VOCABULARY).astype(np.int64)
    inputs = torch.tensor(tokens[:-1].reshape(SEQUENCES, CONTEXT))
    targets = torch.tensor(tokens[1:].reshape(SEQUENCES, CONTEXT))
    return inputs, targets


def norm(p, name, x):
    return F.layer_norm(x, (WIDTH,), p[name + ".weight"], p[name + ".bias"], 1e-5)


def linear(p, name, x):
    return x @ p[name + ".weight"] + p[name + ".bias"]


def attention(qkv):
    heads = [part.view(SEQUENCES, CONTEXT, HEADS, WIDTH // HEADS).transpose(1, 2) for part in qkv.split(WIDTH, 2)]
    q, k, v = heads
    scores = q @ k.transpose(2, 3) / math.sqrt(WIDTH // HEADS)
    future = torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).triu(1)
    mixed = scores.masked_fill(future, -math.inf).softmax(3) @ v
    return mixed.transpose(1, 2).reshape(SEQUENCES, CONTEXT, WIDTH)


def loss_of(p, inputs, targets):
    x = p["wte.weight"][inputs] + p["wpe.weight"]
    for i in range(LAYERS):
        h = f"h.{i}."
        mixed = attention(linear(p, h + "attn.c_attn", norm(p, h + "ln_1", x)))
        x = x + linear(p, h + "attn.c_proj", mixed)
        wide = F.gelu(linear(p, h + "mlp.c_fc", norm(p, h + "ln_2", x)), approximate="tanh")
        x = x + linear(p, h + "mlp.c_proj", wide)
    logits = norm(p, "ln_f", x) @ p["wte.weight"].T
    return F.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))


def learning_rate(step):
    if step < WARMUP:
        return LR * (step + 1) / WARMUP
    progress = (step - WARMUP) / (STEPS - 1 - WARMUP)
    return LR_MIN + 0.5 * (1 + math.cos(math.pi * progress)) * (LR - LR_MIN)


def train(params, inputs, targets):
    trained = [p for p in params.values() if p.requires_grad]
    decayed = [p for p in trained if p.dim() == 2]
    others = [p for p in trained if p.dim() == 1]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPSILON)
    losses, norms, gradients = [], [], None
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.zero_grad()
        loss = loss_of(params, inputs, targets)
        loss.backward()
        if gradients is None:
            gradients = [p.grad.detach().numpy().copy() for p in trained]
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(trained, CLIP).item())
        optimizer.step()
    return losses, norms, gradients


def write_frozen(file, globs):
    params = make_params()
    for name, param in params.items():
        param.requires_grad = not any(fnmatch.fnmatchcase(name, glob) for glob in globs)
    losses, norms, _ = train(params, *make_batch())
    trained = [p for p in params.values() if p.requires_grad]
    file.write(struct.pack(f"<I{2 * STEPS}d", len(params) - len(trained), *losses, *norms))
    for param in trained:
        values = param.detach().numpy().ravel()
        file.write(values[:: len(values) // SAMPLES].astype("<f4").tobytes())
    print("frozen", *globs, "losses", losses[0], losses[-1], "norms", norms[0], norms[-1])


def main(path, frozen_path):
    torch.manual_seed(0)
    params = make_params()
    losses, norms, gradients = train(params, *make_batch())
    with open(path, "wb") as file:
        file.write(b"TIDEGOLD" + struct.pack("<3I", 1, STEPS, len(gradients)))
        file.write(struct.pack(f"<{2 * STEPS}d", *losses, *norms))
        for gradient in gradients:
            file.write(gradient.astype("<f4").tobytes())
    print("losses", losses[0], losses[-1], "norms", norms[0], norms[-1])
    with open(frozen_path, "wb") as file:
        file.write(b"TIDEFROZ" + struct.pack("<3I", 1, STEPS, len(FROZEN)))
        for globs in FROZEN:
            write_frozen(file, globs)


main(*sys.argv[1:])
