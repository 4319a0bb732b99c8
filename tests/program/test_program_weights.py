#!/usr/bin/env python3
"""`tidepool train --model FOLDER`, `tidepool export` and `tidepool train --export`: weights come in and go
out with the same bits.

usage: test_program_weights.py PROGRAM      prints TAP
"""
import json
import random
import re
import shutil
import signal
import struct
import subprocess
import sys

from test_program import MACHINE, MADE, Bench, Run, die_with_parent, one_line, stop_at

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD_WIDTH, MLP, CONTEXT, VOCABULARY = 2, 32, 4, 2, 8, 48, 64, 257
ELEMENT_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I64": 8}
# A learning rate so small that updates change no value, in fp32 or in 16 bits.
STILL = ("--lr", "1e-60")
ALONG = {"tokenizer.json": '{"version": "1.0"}\n', "tokenizer_config.json": "{}", "vocab.json": "{ }", "merges.txt": "a b\n",
         "generation_config.json": '{"top_k": 50}', "special_tokens_map.json": "{}", "LICENSE": "free\n"}
LEFT = {"README.md": "no", "pytorch_model.bin": "no", ".gitattributes": "no", "training_args.bin": "no"}


# ---- safetensors ----

def values_of(name, count):
    """Returns random numbers in a model's usual range, around 1 for norms."""
    generator = random.Random(name)
    middle = 1.0 if "norm" in name or "ln_" in name else 0.0
    return struct.unpack(f"<{count}f", struct.pack(f"<{count}f", *(middle + generator.uniform(-0.2, 0.2) for _ in range(count))))


def bf16_bits(value):
    """Rounds a value to bf16, to nearest, ties to even."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16


def encode(dtype, values):
    if dtype == "BF16":
        return struct.pack(f"<{len(values)}H", *map(bf16_bits, values))
    return struct.pack(f"<{len(values)}{ {'F16': 'e', 'F32': 'f', 'I64': 'q'}[dtype]}", *(map(int, values) if dtype == "I64" else values))


def decode(dtype, content):
    count = len(content) // ELEMENT_BYTES[dtype]
    if dtype == "BF16":
        return [struct.unpack("<f", struct.pack("<I", bits << 16))[0] for bits in struct.unpack(f"<{count}H", content)]
    return list(struct.unpack(f"<{count}{'e' if dtype == 'F16' else 'f'}", content))


def file_write(path, tensors):
    """Writes a safetensors file; `tensors` maps names to (dtype, shape, bytes)."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def file_read(path):
    content = path.read_bytes()
    header_bytes = struct.unpack("<Q", content[:8])[0]
    header, data = json.loads(content[8:8 + header_bytes]), content[8 + header_bytes:]
    return {name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])]) for name, entry in header.items()
            if name != "__metadata__"}


def folder_read(folder):
    """Reads all tensors of a folder, from one file or from shards."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return file_read(folder / "model.safetensors")
    tensors = {}
    for name, file in json.loads(index.read_text())["weight_map"].items():
        tensors[name] = file_read(folder / file)[name]
    return tensors


# ---- models ----

def llama_config(model_type, **more):
    return {"architectures": ["SomeForCausalLM"], "model_type": model_type, "num_hidden_layers": LAYERS, "hidden_size": WIDTH,
            "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_WIDTH, "intermediate_size": MLP,
            "max_position_embeddings": CONTEXT, "vocab_size": VOCABULARY, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
            "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "float32", **more}


def llama_shapes(config):
    query, keys = HEADS * HEAD_WIDTH, KV_HEADS * HEAD_WIDTH
    shapes = {"model.embed_tokens.weight": [VOCABULARY, WIDTH]}
    for layer in range(LAYERS):
        inside = {"input_layernorm.weight": [WIDTH], "self_attn.q_proj.weight": [query, WIDTH], "self_attn.k_proj.weight": [keys, WIDTH],
                  "self_attn.v_proj.weight": [keys, WIDTH], "self_attn.o_proj.weight": [WIDTH, query],
                  "post_attention_layernorm.weight": [WIDTH], "mlp.gate_proj.weight": [MLP, WIDTH], "mlp.up_proj.weight": [MLP, WIDTH],
                  "mlp.down_proj.weight": [WIDTH, MLP]}
        if config["model_type"] == "qwen2":
            inside.update({"self_attn.q_proj.bias": [query], "self_attn.k_proj.bias": [keys], "self_attn.v_proj.bias": [keys]})
        if config["model_type"] == "qwen3":
            inside.update({"self_attn.q_norm.weight": [HEAD_WIDTH], "self_attn.k_norm.weight": [HEAD_WIDTH]})
        shapes.update({f"model.layers.{layer}.{name}": shape for name, shape in inside.items()})
    shapes["model.norm.weight"] = [WIDTH]
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = [VOCABULARY, WIDTH]
    return shapes


def gpt2_config():
    return {"model_type": "gpt2", "n_layer": LAYERS, "n_embd": WIDTH, "n_head": HEADS, "n_positions": CONTEXT,
            "vocab_size": VOCABULARY, "layer_norm_epsilon": 1e-05, "activation_function": "gelu_new", "dtype": "float16",
            "some_number": 0.30000000000000004}


def gpt2_shapes():
    shapes = {"wte.weight": [VOCABULARY, WIDTH], "wpe.weight": [CONTEXT, WIDTH]}
    for layer in range(LAYERS):
        inside = {"ln_1.weight": [WIDTH], "ln_1.bias": [WIDTH], "attn.c_attn.weight": [WIDTH, 3 * WIDTH], "attn.c_attn.bias": [3 * WIDTH],
                  "attn.c_proj.weight": [WIDTH, WIDTH], "attn.c_proj.bias": [WIDTH], "ln_2.weight": [WIDTH], "ln_2.bias": [WIDTH],
                  "mlp.c_fc.weight": [WIDTH, 4 * WIDTH], "mlp.c_fc.bias": [4 * WIDTH], "mlp.c_proj.weight": [4 * WIDTH, WIDTH],
                  "mlp.c_proj.bias": [WIDTH]}
        shapes.update({f"h.{layer}.{name}": shape for name, shape in inside.items()})
    return {**shapes, "ln_f.weight": [WIDTH], "ln_f.bias": [WIDTH]}


def count_of(shape):
    count = 1
    for side in shape:
        count *= side
    return count


def tensors_of(config, dtypes):
    """Makes a model's tensors; they take the dtypes of the list in turn."""
    shapes = gpt2_shapes() if config["model_type"] == "gpt2" else llama_shapes(config)
    return {name: (dtypes[i % len(dtypes)], shape, encode(dtypes[i % len(dtypes)], values_of(name, count_of(shape))))
            for i, (name, shape) in enumerate(shapes.items())}


def folder_write(folder, config, tensors, shards=0):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for name, text in {**ALONG, **LEFT}.items():
        (folder / name).write_text(text)
    (folder / "tokenizer_parts").mkdir()
    if not shards:
        file_write(folder / "model.safetensors", tensors)
        return folder
    names = [f"model-{n + 1:05}-of-{shards:05}.safetensors" for n in range(shards)]
    places = {name: names[i % shards] for i, name in enumerate(tensors)}
    for file in names:
        file_write(folder / file, {name: tensor for name, tensor in tensors.items() if places[name] == file})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
    return folder


# ---- runs ----

def train(bench, model, *options):
    given = ["--model", model, "--data", bench.text, "--seq-len", 32, "--batch-tokens", 128, "--micro-batch", 2, "--eval-every", 0,
             "--chunk-size", "256KiB", *options]
    return given if "--steps" in options else [*given, "--steps", 2]


def export(bench, checkpoint, out, *options):
    return [bench.program, "export", "--checkpoint", str(checkpoint), "--out", str(out), *map(str, options)]


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.is_dir() else None


def rounded(tensors, dtype):
    """Returns the tensors as an export should hold them after an import that changed nothing."""
    return {name: (dtype, shape, encode(dtype, decode(had, content))) for name, (had, shape, content) in tensors.items()}


def kept_files(folder):
    """Maps the names of an export's files, but for the weights, to their texts."""
    return {path.name: path.read_text() for path in folder.iterdir() if path.suffix != ".safetensors"} if folder.is_dir() else None


def config_with(model, dtype="bf16"):
    """Returns the text of the model's config.json as an export in this dtype should have it."""
    word = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}[dtype]
    return re.sub(r'"float(16|32)"', f'"{word}"', (model / "config.json").read_text())


def without(tensors):
    """Returns the tensors under the names of an embedding model's file: the base model's names without their
    prefix."""
    return {name.removeprefix("model."): tensor for name, tensor in tensors.items()}


def head_alone(tensors, embedding="model.embed_tokens.weight"):
    """Returns a tied model's tensors as safetensors' save_model stores them: under the alphabetically first
    of two names, that of the head."""
    return {**{name: tensor for name, tensor in tensors.items() if name != embedding}, "lm_head.weight": tensors[embedding]}


def families(bench):
    """Folders of every family pass through import, two steps that change nothing, and export."""
    gpt2 = tensors_of(gpt2_config(), ["F32"])
    mask = {f"transformer.h.{layer}.attn.bias": ("F32", [1, 1, 4, 4], bytes(64)) for layer in range(LAYERS)}
    bare = llama_config("qwen3", tie_word_embeddings=True)
    cases = (
        ("llama", llama_config("llama"), None, ["BF16"], "bf16", 0),
        ("llama, tied", llama_config("llama", tie_word_embeddings=True), None, ["F16", "BF16", "F32"], "bf16", 3),
        ("qwen2", llama_config("qwen2", use_sliding_window=False), None, ["F32"], "fp32", 2),
        ("qwen3", llama_config("qwen3", attention_bias=False), None, ["F16"], "fp16", 0),
        ("mistral", llama_config("mistral", sliding_window=None), None, ["F32", "F16"], "bf16", 2),
        ("gpt2 with prefix and masks", gpt2_config(), {**{"transformer." + name: tensor for name, tensor in gpt2.items()}, **mask}, None,
         "bf16", 2),
        ("gpt2 with its head alone", gpt2_config(), head_alone(gpt2, "wte.weight"), None, "fp32", 0),
        ("qwen3, tied, without model. and with its head alone", bare, without(head_alone(tensors_of(bare, ["BF16"]))), None, "bf16", 0),
    )
    for number, (name, config, given, dtypes, dtype, shards) in enumerate(cases):
        model, saved, out, again = (bench.folder / f"{part}-{number}" for part in ("hf", "saved", "out", "again"))
        folder_write(model, config, given or tensors_of(config, dtypes), shards)
        mine = tensors_of(config, dtypes or (["F32"] if "gpt2" in name else ["BF16"]))
        expected = rounded(mine, dtype.upper().replace("FP", "F"))
        if "without model." in name:  # an export keeps the names that came in
            expected = without(expected)
        if "with prefix" in name:
            expected = {"transformer." + key: tensor for key, tensor in expected.items()}
        run = bench.run(*train(bench, model, "--dtype", dtype, *STILL, "--checkpoint", saved, "--export", out))
        bench.tap.ok(run.status == 0 and f"begins with the weights in {model}\n" in run.out and f"exported {out} in " in run.out and
                     run.err == "", f"{name}: trains, saves and exports", run)
        bench.tap.ok(out.is_dir() and folder_read(out) == expected, f"{name}: what comes out is what went in, rounded once",
                     sorted(folder_read(out)) if out.is_dir() else "")
        bench.tap.ok(file_read(saved / "step-2" / "model.safetensors") == rounded(mine, "F32"), f"{name}: the checkpoint has the files' values")
        command = Run(export(bench, saved, again))
        bench.tap.ok(command.status == 0 and command.err == "" and contents(again) == contents(out) and
                     f"the model of {saved}/step-2, in " in command.out, f"{name}: tidepool export writes the same bytes", command)
        bench.tap.ok(kept_files(again) == {**ALONG, "config.json": config_with(model, dtype)},
                     f"{name}: config.json and the tokenizer go along", command)


def defaults(bench):
    """Defaults that a model folder changes (rate, decay, sequence length), and that options given
    override."""
    model, saved = folder_write(bench.folder / "defaults", llama_config("llama", max_position_embeddings=8192),
                                tensors_of(llama_config("llama"), ["BF16"])), bench.folder / "defaults-saved"
    run = bench.run(*train(bench, model, "--checkpoint", saved))
    said = (saved / "step-2" / "manifest.json").read_text()
    bench.tap.ok("lr 1e-05 " in run.out and "weight decay 0," in run.out and "sample" not in run.out, "lr 1e-5, no decay, no sample", run)
    bench.tap.ok(all(re.search(rf'"{key}": ?([-+.e0-9]+)', said) and float(re.search(rf'"{key}": ?([-+.e0-9]+)', said)[1]) == value
                     for key, value in (("lr", 1e-5), ("weight_decay", 0))), "they are the run's own", said)
    run = bench.run(*train(bench, model, "--lr", "1e-3", "--weight-decay", "0.05", "--sample", 3))
    bench.tap.ok("lr 0.001 " in run.out and "weight decay 0.05," in run.out and "sample of 3 tokens" in run.out, "what is given counts", run)
    wide = llama_config("llama", vocab_size=258)
    tensors = tensors_of(wide, ["BF16"])
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = ("BF16", [258, WIDTH], encode("BF16", values_of(name, 258 * WIDTH)))
    told = f"{bench.text} is taken as bytes, which are not this model's tokens"
    others = bench.run(*train(bench, folder_write(bench.folder / "wide", wide, tensors), "--steps", 1))
    bench.tap.ok(others.status == 0 and told in others.out and told not in run.out, "a text to a model of other tokens is told of", others)
    run = bench.run(*train(bench, model / "config.json", "--steps", 1))
    bench.tap.ok(run.status == 0 and "lr 0.0006 " in run.out and "weight decay 0.1," in run.out and "begins with" not in run.out,
                 "of a config.json by itself the sizes count alone", run)
    for folder, length in ((model, 4096), (model / "config.json", 8192)):
        run = bench.run("--model", folder, "--device", "null", *MACHINE, "--steps", 1, "--batch-tokens", 8192, "--recompute", "all")
        bench.tap.ok(run.status == 0 and f" of {length} in " in run.out, f"a sequence of {length} where none is given", run)


def plan_command(bench, model, length, *options):
    return [bench.program, "plan", *map(str, ("--model", model, *MACHINE, "--seq-len", length, "--batch-tokens", 4 * length,
                                              "--chunk-size", "256KiB", *options))]


def plan(bench, model, *options):
    return Run(plan_command(bench, model, 32, *options))


def names_kept(bench):
    """A checkpoint alone tells a resumed run which names the folder's tensors had; the folder's weights may
    be gone."""
    config = llama_config("qwen3", tie_word_embeddings=True)
    tensors = without(tensors_of(config, ["BF16"]))
    model, saved, other, out = (bench.folder / f"bare-{part}" for part in ("hf", "saved", "other", "out"))
    folder_write(model, config, tensors)
    bench.run(*train(bench, model, "--checkpoint", saved))
    (model / "model.safetensors").unlink()
    run = bench.run(*train(bench, model, "--steps", 3, "--checkpoint", other, "--resume-from", saved / "step-2", "--export", out))
    again = Run(export(bench, other, bench.folder / "bare-again"))
    bench.tap.ok(run.status == 0 and again.status == 0 and "names" not in run.out and
                 folder_read(out).keys() == folder_read(bench.folder / "bare-again").keys() == tensors.keys(),
                 "a run that goes on exports the names that came in", run)


def notes(bench):
    """The first lines of a run and of a plan name each setting of config.json that is missing or ignored;
    otherwise they say nothing."""
    llama, mistral = tensors_of(llama_config("llama"), ["BF16"]), {"model_type": "mistral"}
    dropped, absent, window, padding = "tidepool trains without", "has no ", "sliding window", "is padding"
    cases = (
        ("a llama of today", {"pad_token_id": None, "attention_dropout": 0.0}, ()),
        ("dropout", {"attention_dropout": 0.1},
         ("transformers would train this model with dropout (attention_dropout 0.1); tidepool trains without",)),
        ("no positions, llama", {"max_position_embeddings": None},
         ("config.json has no max_position_embeddings: it is 2048, transformers' default for llama",)),
        ("no positions, mistral", {**mistral, "sliding_window": None, "max_position_embeddings": None},
         ("config.json has no max_position_embeddings: it is 131072, transformers' default for mistral",)),
        ("a window", {**mistral, "sliding_window": 32},
         ("attention has a sliding window of 32 positions: sequences are at most that long, which need none",)),
        ("a padding token", {"pad_token_id": 65},
         ("token 65 is padding (pad_token_id): as in transformers its embedding gets no gradient from inputs",)),
    )
    for number, (what, changes, lines) in enumerate(cases):
        config = {key: value for key, value in {**llama_config("llama"), **changes}.items()
                  if value is not None or key == "sliding_window"}
        model = folder_write(bench.folder / f"notes-{number}", config, llama)
        for run in (bench.run(*train(bench, model, "--steps", 1)), plan(bench, model), plan(bench, model, "--host-memory", "1MiB")):
            told = [line for line in run.out.splitlines() if any(part in line for part in (dropped, absent, window, padding))]
            bench.tap.ok(run.status in (0, 1) and run.err == "" and tuple(told) == lines, f"{what}: the head says it", run)
    tied = llama_config("qwen2", tie_word_embeddings=True, pad_token_id=-1)
    run = plan(bench, folder_write(bench.folder / "notes-tied", tied, {}))
    bench.tap.ok(f"token {VOCABULARY - 1} is padding (pad_token_id): as in transformers its embedding gets no gradient from inputs, "
                 "only from the head\n" in run.out, "a padding token of a tied model, from the vocabulary's end", run)
    gpt2 = {key: value for key, value in gpt2_config().items() if key != "n_positions"}
    run = plan(bench, folder_write(bench.folder / "notes-gpt2", {**gpt2, "embd_pdrop": 0, "pad_token_id": 3}, {}))
    bench.tap.ok("dropout (attn_pdrop 0.1, resid_pdrop 0.1); tidepool trains without\n" in run.out and padding not in run.out and
                 "config.json has no n_positions: it is 1024, transformers' default for gpt2\n" in run.out, "gpt2's own defaults", run)
    out = bench.folder / "notes-made"
    bench.run(*train(bench, "gpt2-nano", "--steps", 1, "--export", out))
    bench.tap.ok(dropped not in plan(bench, out).out, "what was made without dropout asks for none")


def windows(bench):
    """Sequences not longer than a sliding window are trained, since the window has no effect on them; longer
    ones are refused."""
    config = llama_config("mistral", sliding_window=32)
    model = folder_write(bench.folder / "window", config, tensors_of(config, ["BF16"]))
    out = bench.folder / "window-out"
    run = bench.run(*train(bench, model, *STILL, "--export", out))
    bench.tap.ok(run.status == 0 and kept_files(out)["config.json"] == config_with(model),
                 "a sequence of the window's length is trained on, and the window goes out again", run)
    refused = (r"sequence length 33: the model's attention has a sliding window of 32 positions, only sequences of 32 and less, which need "
               "none, are built")
    longer = [33 if word == 32 else 132 if word == 128 else word for word in train(bench, model)]
    one_line(bench, "one that is longer", 2, refused, *longer)
    one_line(bench, "one that is longer, planned", 2, refused, command=plan_command(bench, model, 33))
    for source in (model, model / "config.json"):
        run = bench.run("--model", source, "--device", "null", *MACHINE, "--steps", 1, "--chunk-size", "256KiB")
        bench.tap.ok(run.status == 0 and " of 32 in " in run.out, "where none is given it is the window", run)


def paddings(bench):
    """The embedding of a padding token stays unchanged, except by the gradient of a tied head."""
    token = ord("e")
    for tied in (False, True):
        for pad in (None, token):
            config = llama_config("llama", tie_word_embeddings=tied, pad_token_id=pad)
            model, out = (bench.folder / f"{part}-{tied}-{pad}" for part in ("pads", "padded"))
            folder_write(model, config, tensors_of(config, ["F32"]))
            run = bench.run(*train(bench, model, "--lr", "1e-2", "--dtype", "fp32", "--export", out))
            rows = [folder_read(folder)["model.embed_tokens.weight"][2] for folder in (model, out)]
            row_bytes = WIDTH * ELEMENT_BYTES["F32"]
            moved = [rows[0][at * row_bytes:][:row_bytes] != rows[1][at * row_bytes:][:row_bytes] for at in (token, ord("t"))]
            bench.tap.ok(run.status == 0 and moved == [tied or pad is None, True],
                         f"padding {pad}, {'a tied head' if tied else 'a head of its own'}: its row {'moves' if moved[0] else 'stays'}", run)
    saved = bench.folder / "padding-saved"
    bench.run(*train(bench, bench.folder / "pads-False-None", "--checkpoint", saved))
    run = bench.run(*train(bench, bench.folder / f"pads-False-{token}", "--checkpoint", saved, "--resume", "--steps", 3))
    bench.tap.ok(run.status == 0 and f"changed since: model.pad_token_id none -> {token}\n" in run.out,
                 "a checkpoint from before it was named goes on, and the run says so", run)


def exports(bench):
    """Exports of a run that learns: from older checkpoints, in other dtypes, in shards, and without the kept
    files of the model's folder."""
    model, saved = folder_write(bench.folder / "learns", gpt2_config(), tensors_of(gpt2_config(), ["F32"])), bench.folder / "learnt"
    run = bench.run(*train(bench, model, "--steps", 3, "--lr", "1e-3", "--checkpoint", saved, "--save-every", 1, "--keep", 0))
    bench.tap.ok(run.status == 0 and sorted(path.name for path in saved.iterdir()) == ["step-1", "step-2", "step-3", "tidepool-origin"] and
                 sorted(path.name for path in (saved / "tidepool-origin").iterdir()) == sorted([*ALONG, "config.json"]),
                 "the folder's files are kept beside the checkpoints", run)
    for number, (at, step, options, dtype) in enumerate((("", 3, (), "BF16"), ("step-1", 1, (), "BF16"),
                                                         ("step-2/", 2, ("--dtype", "fp32"), "F32"),
                                                         ("step-3", 3, ("--dtype", "fp16", "--max-shard-size", "12KB"), "F16"))):
        out = bench.folder / f"learnt-{number}"
        run = Run(export(bench, f"{saved}/{at}", f"{out}/" if number == 1 else out, *options))
        expected = rounded(file_read(saved / f"step-{step}" / "model.safetensors"), dtype)
        bench.tap.ok(run.status == 0 and folder_read(out) == expected and
                     all((out / name).read_text() == text for name, text in ALONG.items()),
                     f"step {step} in {dtype}", run)
    shards = sorted(path for path in out.iterdir() if path.suffix == ".safetensors")
    index = json.loads((out / "model.safetensors.index.json").read_text())
    total = sum(len(content) for _, _, content in expected.values())
    bench.tap.ok(len(shards) > 3 and set(index["weight_map"].values()) == {path.name for path in shards} and
                 index["metadata"]["total_size"] == total and
                 all(path.stat().st_size < 14000 or len(file_read(path)) == 1 for path in shards), "shards with an index", shards)
    run = bench.run(*train(bench, out, *STILL, "--dtype", "fp16", "--export", bench.folder / "joined"))
    bench.tap.ok(run.status == 0 and folder_read(bench.folder / "joined") == expected, "shards are read again", run)
    shutil.rmtree(saved / "tidepool-origin")
    run = Run(export(bench, saved, bench.folder / "bare"))
    config = json.loads((bench.folder / "bare" / "config.json").read_text())
    bench.tap.ok(run.status == 0 and sorted(contents(bench.folder / "bare")) == ["config.json", "model.safetensors"] and
                 config["model_type"] == "gpt2" and config["n_embd"] == WIDTH and config["torch_dtype"] == "bfloat16" and
                 folder_read(bench.folder / "bare") == folder_read(bench.folder / "learnt-0"), "without DIR/tidepool-origin a config.json is made", run)
    run = bench.run(*train(bench, bench.folder / "bare", *STILL, "--steps", 1))
    bench.tap.ok(run.status == 0, "and can be trained", run)


def kept(bench):
    """Which runs write, keep or remove DIR/tidepool-origin: a resumed run, a new one, one that fails."""
    model, saved = folder_write(bench.folder / "kept", llama_config("llama"), tensors_of(llama_config("llama"), ["BF16"])), bench.folder / "kept-saved"
    bench.run(*train(bench, model, "--checkpoint", saved))
    (model / "model.safetensors").unlink()
    (model / "tokenizer.json").write_text("another")
    run = bench.run(*train(bench, model, "--steps", 3, "--checkpoint", saved, "--resume", "--export", bench.folder / "resumed"))
    bench.tap.ok(run.status == 0 and "begins with" not in run.out and "resumed from" in run.out and
                 (saved / "tidepool-origin" / "tokenizer.json").read_text() == ALONG["tokenizer.json"],
                 "a run that goes on needs no weights and changes nothing that is kept", run)
    other = bench.folder / "kept-other"
    run = bench.run(*train(bench, model, "--steps", 4, "--checkpoint", other, "--resume-from", saved / "step-3"))
    bench.tap.ok(run.status == 0 and (other / "tidepool-origin" / "tokenizer.json").read_text() == "another", "one that goes on elsewhere keeps them there", run)
    shutil.rmtree(other / "step-4")
    run = bench.run(*train(bench, bench.tiny, "--checkpoint", other))
    bench.tap.ok(run.status == 0 and sorted(path.name for path in other.iterdir()) == ["step-2"], "a new one without a folder takes them away", run)
    # The model's own folder lies in the checkpoint folder under the reserved name.
    here = bench.folder / "kept-origin"
    here.mkdir()
    mine = folder_write(here / "tidepool-origin", llama_config("llama"), tensors_of(llama_config("llama"), ["BF16"]))
    before = folder_read(mine)
    one_line(bench, "a run whose own folder is called tidepool-origin", 1, "which no run has kept there", *train(bench, mine, "--checkpoint", here))
    bench.tap.ok(folder_read(mine) == before, "its own folder stays as it is")
    wild = {**tensors_of(gpt2_config(), ["F32"]), "ln_f.weight": ("F32", [WIDTH], encode("F32", [float("inf")] * WIDTH))}
    fresh = folder_write(bench.folder / "fresh", gpt2_config(), wild)
    failed, out = bench.folder / "kept-failed", bench.folder / "kept-out"
    run = one_line(bench, "a run that fails", 1, "step 1: .*not finite",
                   *train(bench, fresh, "--clip", 0, "--checkpoint", failed, "--export", out))
    bench.tap.ok(not failed.exists() and not out.exists(), "leaves neither a folder of checkpoints nor an export", run)


def refused_folders(bench):
    """A fault of a folder is refused before training, in one line that names it. tests/files/test_weights_refusals.c and
    test_config_families.c have the faults of weights and of config.json."""
    config = llama_config("llama")
    sound = tensors_of(config, ["BF16"])
    name, head = "model.layers.1.mlp.up_proj.weight", ("BF16", [VOCABULARY, WIDTH], encode("BF16", values_of("x", VOCABULARY * WIDTH)))
    cases = (
        ("no config.json", "config.json", config, sound, "config.json"),
        ("no weights", "model.safetensors", config, sound, "model.safetensors"),
        ("a shard that is missing", "model-00002-of-00002", config, sound, "model-00002-of-00002.safetensors"),
        ("a tensor that is missing", name, config, {key: tensor for key, tensor in sound.items() if key != name}, None),
        ("a layer too many", "model.layers.2.input_layernorm", config,
         {**sound, "model.layers.2.input_layernorm.weight": ("F32", [WIDTH], bytes(4 * WIDTH))}, None),
        ("a head alone where it is not tied", "embed_tokens.weight of shape .* is missing", config, head_alone(sound), None),
        ("a tied head of other values", "lm_head.weight has other values than model.embed_tokens.weight", {**config, "tie_word_embeddings": True},
         {**sound, "lm_head.weight": head}, None),
        ("a sliding window of no known size", "layer_types", {**config, "model_type": "qwen2", "use_sliding_window": False,
                                                              "layer_types": ["full_attention", "sliding_attention"]}, sound, None),
        ("no type", "model_type", {**config, "model_type": None}, sound, None),
    )
    for number, (what, part, its_config, tensors, missing) in enumerate(cases):
        folder, saved, out = (bench.folder / f"refused-{text}{number}" for text in ("", "saved-", "out-"))
        folder_write(folder, its_config, tensors, 2 if missing and "-of-" in missing else 0)
        if missing:
            (folder / missing).unlink()
        run = one_line(bench, what, 1, part, *train(bench, folder, "--checkpoint", saved, "--export", out))
        bench.tap.ok(f"{folder}" in run.err and "step 1/" not in run.out and not saved.exists() and not out.exists(),
                     what + ": the folder is named, nothing is trained or left", run)
    folder = folder_write(bench.folder / "sound", config, sound)
    one_line(bench, "--vocab-size that is not the weights'", 1, "lm_head", *train(bench, folder, "--vocab-size", 300))


def refused_exports(bench):
    """tests/files/test_export.c has the other places and checkpoints that are refused."""
    model = folder_write(bench.folder / "exports", llama_config("llama"), tensors_of(llama_config("llama"), ["F32"]))
    there, saved = bench.folder / "there", bench.folder / "exports-saved"
    there.mkdir()
    for what, out, status, part in (("a folder that is there", there, 2, "there already"), ("the data", bench.text, 2, "that is --data itself"),
                                    ("a folder in none", bench.folder / "none" / "out", 1, "none"),
                                    ("the checkpoints' own", saved, 2, "that is --checkpoint itself"),
                                    ("a checkpoint's", saved / "step-9", 2, "step-9: that name in a folder of checkpoints is a run's own")):
        run = one_line(bench, "--export: " + what, status, part, *train(bench, model, "--export", out, "--checkpoint", saved))
        bench.tap.ok("step 1/" not in run.out and not saved.exists() and not any(there.iterdir()), what + ": nothing is trained or left", run)
    one_line(bench, "--export of the null device", 2, "--export needs a device that computes", "--model", model, "--device", "null",
             *MACHINE, "--steps", 1, "--export", bench.folder / "null-out")
    bench.run(*train(bench, model, "--checkpoint", saved))
    out = bench.folder / "refused-out"
    for what, status, part, command in (
            ("no folder", 1, "none", export(bench, bench.folder / "none", out)),
            ("no checkpoint in it", 1, "holds no checkpoint", export(bench, there, out)),
            ("no such step", 1, "step-7", export(bench, saved / "step-7", out)),
            ("an output that is there", 2, "there already", export(bench, saved, there)),
            ("a place in a checkpoint", 2, "it would go with the checkpoint", export(bench, saved, saved / "step-2" / "x")),
            ("another dtype", 2, "must be one of run|bf16|fp16|fp32", export(bench, saved, out, "--dtype", "fp8")),
            ("a shard of nothing", 2, "--max-shard-size", export(bench, saved, out, "--max-shard-size", 0))):
        one_line(bench, "export: " + what, status, part, command=command)
    (saved / "tidepool-origin" / "config.json").write_text(json.dumps({**llama_config("llama"), "rope_theta": 20000.0}))
    one_line(bench, "a DIR/tidepool-origin of another model", 1, "tidepool-origin/config.json is of another model", command=export(bench, saved, out))
    bench.tap.ok(not out.exists() and not any(there.iterdir()), "nothing of it is there")


def stopped(bench):
    model, out = folder_write(bench.folder / "stopped", gpt2_config(), tensors_of(gpt2_config(), ["F32"])), bench.folder / "stopped-out"
    status, said = stop_at(bench, train(bench, model, "--steps", 100000, "--export", out), "step 2/", signal.SIGTERM)
    bench.tap.ok(status == 0 and "stopped after step" in said and "nothing was exported: " in said and not out.exists(),
                 "a run that SIGTERM stops exports nothing, and says so", said[-2000:])


def started(command, pattern, folder):
    """Starts the command and returns it once a file in the folder matches the pattern, or once it has ended."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=die_with_parent)
    while process.poll() is None and not list(folder.glob(pattern)):
        pass
    return process


def export_stopped(bench):
    """The model is large enough for the signal to meet the export while it writes."""
    saved, out = bench.folder / "large-saved", bench.folder / "large-out"
    run = bench.run("--model", "gpt2-nano", "--data", bench.text, "--steps", 1, "--batch-tokens", 256, "--chunk-size", "1MiB",
                    "--eval-every", 0, "--sample", 0, "--checkpoint", saved)
    bench.tap.ok(run.status == 0, "a checkpoint to export", run)
    command = export(bench, saved, out, "--dtype", "fp32", "--max-shard-size", "64KiB")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        process = started(command, "large-out.tmp-*/*.safetensors", bench.folder)
        process.send_signal(number)
        said, error = process.communicate()
        left = list(bench.folder.glob("large-out.tmp-*"))
        if number != signal.SIGKILL:
            name = signal.Signals(number).name
            bench.tap.ok(process.returncode == 1 and said == "" and not out.exists() and not left and
                         MADE.sub("", error) == f"tidepool export: stopped by {name}: nothing is in {out}\n",
                         f"an export that {name} stops leaves nothing, and says so", said + error)
    run = Run(export(bench, saved, out))
    bench.tap.ok(len(left) == 2 and run.status == 0 and out.is_dir() and not any(path.exists() for path in left),
                 "one that is killed leaves its part under another name, until the next export there", run)


def export_ends(bench):
    """Things that could cost a user the export at the end are refused before training, or do no harm."""
    config = llama_config("llama")
    model, out, saved = folder_write(bench.folder / "ends", config, tensors_of(config, ["BF16"])), bench.folder / "ends-out", bench.folder / "ends-saved"
    tokenizer = model / "tokenizer.json"
    tokenizer.unlink()
    tokenizer.symlink_to("nowhere")
    run = one_line(bench, "a tokenizer whose link leads nowhere", 1, "tokenizer.json can't be read", *train(bench, model, "--export", out))
    bench.tap.ok("step 1/" not in run.out and not out.exists(), "is met before step 1", run)
    tokenizer.unlink()
    tokenizer.write_text(ALONG["tokenizer.json"])
    out.symlink_to("nowhere")
    run = one_line(bench, "an output that is a link to nowhere", 2, "it is there already", *train(bench, model, "--export", out))
    bench.tap.ok("step 1/" not in run.out, "is refused before step 1", run)
    out.unlink()
    process = started(bench.command(*train(bench, model, *STILL, "--steps", 3, "--export", out)), "ends-out.tmp-*/vocab.json", bench.folder)
    moved = model.rename(bench.folder / "ends-moved") if list(bench.folder.glob("ends-out.tmp-*/config.json")) else model
    _, error = process.communicate()
    lost = "weights" in error  # the folder was moved before the run had read its weights
    bench.tap.ok(lost or (process.returncode == 0 and folder_read(out) == folder_read(moved) and (out / "tokenizer.json").exists()),
                 "the folder that a run began with may go while it trains", error)
    model, again = moved, bench.folder / "ends-again"
    process = subprocess.Popen(bench.command(*train(bench, model, "--steps", 100000, "--checkpoint", again)),
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=die_with_parent)
    for line in process.stdout:
        if "step 1/" in line:
            shutil.rmtree(again)
            process.send_signal(signal.SIGTERM)
    error = process.communicate()[1]
    bench.tap.ok(process.returncode == 0 and (again / "tidepool-origin" / "tokenizer.json").read_text() == ALONG["tokenizer.json"],
                 "a folder of checkpoints that somebody has removed is made again with the tokenizer", error)
    run = bench.run(*train(bench, model, "--checkpoint", saved))
    out = bench.folder / "ends-resumed"
    run = bench.run(*train(bench, model / "config.json", "--steps", 3, "--checkpoint", saved, "--resume", "--export", out))
    bench.tap.ok(run.status == 0 and kept_files(out) == {**ALONG, "config.json": config_with(model)},
                 "a run that goes on without the folder exports what the checkpoints have kept", run)
    other = bench.folder / "ends-other"  # it has an earlier run's tidepool-origin and no checkpoint
    shutil.copytree(saved / "tidepool-origin", other / "tidepool-origin")
    (other / "tidepool-origin" / "tokenizer.json").write_text("another's")
    run = bench.run(*train(bench, model / "config.json", "--steps", 4, "--checkpoint", other, "--resume-from", saved / "step-3"))
    bench.tap.ok(run.status == 0 and (other / "tidepool-origin" / "tokenizer.json").read_text() == ALONG["tokenizer.json"],
                 "one that goes on elsewhere keeps what its checkpoint had kept, not what lay there", run)
    mine, linked = bench.folder / "ends-mine", bench.folder / "ends-linked"
    shutil.copytree(saved / "tidepool-origin", mine)
    linked.mkdir()
    (linked / "tidepool-origin").symlink_to(mine)
    run = bench.run(*train(bench, model, "--checkpoint", linked))
    bench.tap.ok(run.status == 0 and len(list(mine.iterdir())) == len(ALONG) + 1 and not (linked / "tidepool-origin").is_symlink(),
                 "a link to a folder of one's own is replaced, and not what it leads to", run)
    fresh = bench.folder / "ends-fresh"
    wild = folder_write(bench.folder / "ends-wild", config, {**tensors_of(config, ["BF16"]), "x": ("F32", [1], bytes(4))})
    one_line(bench, "a run that can't begin", 1, "tensor x", *train(bench, wild, "--checkpoint", fresh, "--export", fresh / "model"))
    bench.tap.ok(not fresh.exists(), "leaves no folder, though the export was to lie in it")


def main(program):
    bench = Bench(program, False)
    try:
        for part in (families, defaults, names_kept, notes, windows, paddings, exports, kept, refused_folders, refused_exports, stopped,
                     export_stopped, export_ends):
            part(bench)
        temporary = [str(path) for path in bench.folder.rglob("*") if ".tmp" in path.name]
        bench.tap.ok(not temporary, "nothing temporary is left anywhere", "\n".join(temporary))
    finally:
        bench.close()
    bench.tap.done()


if __name__ == "__main__":
    main(sys.argv[1])
