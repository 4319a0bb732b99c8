#!/usr/bin/env python3
"""Makes a Hugging Face folder out of a GGUF file of a Llama with a byte-level BPE: fp32 weights, config.json,
tokenizer and chat template. Needs `gguf` (numpy), not torch.

usage: gguf_folder.py FILE.gguf FOLDER

Values are the file's, de-quantized. llama.cpp stores the rows of q and k with the two halves of each head's
rotation interleaved; they are put back into the order of Hugging Face, as transformers does. FOLDER must not
exist; it appears when it is complete. tools/dev/hf_check.sh compares it with what transformers loads from the
same file.
"""
import json
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np

try:
    from gguf import GGUFReader, dequantize
except ImportError:
    sys.exit("gguf_folder.py: the Python package gguf is missing (PyPI has it)")

CONTROL, USER_DEFINED = 3, 4  # types of tokens
NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
BLOCK_NAMES = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
               "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
               "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
               "ffn_down": "mlp.down_proj"}
DIGITS = {"type": "Digits", "individual_digits": True}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
# By the name that llama.cpp gives to a tokenizer's way of splitting text into words.
SPLITS = {"smollm": {"type": "Sequence", "pretokenizers": [DIGITS, BYTES]}, "gpt-2": BYTES, "default": BYTES}


class Fields:
    """The file's fields by name; a name that is not there ends the program."""

    def __init__(self, reader):
        self.fields = reader.fields

    def get(self, name, default=None):
        field = self.fields.get(name)
        return default if field is None else field.contents()

    def __getitem__(self, name):
        value = self.get(name)
        if value is None:
            sys.exit(f"gguf_folder.py: the file has no field {name}")
        return value


def short(value):
    """Returns the shortest number that is the same in fp32."""
    return float(str(np.float32(value)))


def config(fields, tied):
    heads = fields["llama.attention.head_count"]
    width = fields["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields.get("llama.attention.head_count_kv", heads),
        "head_dim": fields.get("llama.rope.dimension_count", width // heads),
        "max_position_embeddings": fields["llama.context_length"],
        "rms_norm_eps": short(fields["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": short(fields.get("llama.rope.freq_base", 10000.0)),
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "torch_dtype": "float32",
    }


def tokenizer(fields):
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    model, split = fields["tokenizer.ggml.model"], fields.get("tokenizer.ggml.pre", "default")
    if model != "gpt2" or split not in SPLITS:
        sys.exit(f"gguf_folder.py: a tokenizer {model} that splits as {split} is not known here")
    added = [{"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": kind == CONTROL}
             for i, (token, kind) in enumerate(zip(tokens, types)) if kind in (CONTROL, USER_DEFINED)]
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": SPLITS[split],
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                  "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False,
                  "ignore_merges": False, "vocab": {token: i for i, token in enumerate(tokens)},
                  "merges": [merge.split(" ") for merge in fields["tokenizer.ggml.merges"]]},
    }


def tokenizer_config(fields):
    tokens = fields["tokenizer.ggml.tokens"]
    made = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False,
            "model_max_length": fields["llama.context_length"]}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        number = fields.get(f"tokenizer.ggml.{key}_token_id")
        if number is not None:
            made[f"{name}_token"] = tokens[number]
    template = fields.get("tokenizer.chat_template")
    return made if template is None else {**made, "chat_template": template}


def name_of(name):
    """Returns the name that Hugging Face has for a tensor of the file."""
    stem, _, kind = name.rpartition(".")
    if kind == "weight" and stem in NAMES:
        return f"{NAMES[stem]}.weight"
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if kind == "weight" and block and block[2] in BLOCK_NAMES:
        return f"model.layers.{block[1]}.{BLOCK_NAMES[block[2]]}.weight"
    sys.exit(f"gguf_folder.py: a tensor {name} is not known here")


def values(tensor, name, settings):
    shape = [int(size) for size in reversed(tensor.shape)]
    found = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32).reshape(shape)
    for part, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
        if part in name:
            by_head = found.reshape(settings[heads], shape[0] // settings[heads] // 2, 2, shape[1])
            found = by_head.swapaxes(1, 2).reshape(shape)
    return np.ascontiguousarray(found)


def write_weights(path, tensors, settings):
    named = sorted((name_of(tensor.name), tensor) for tensor in tensors)
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in named:
        begin, end = end, end + 4 * int(tensor.n_elements)
        header[name] = {"dtype": "F32", "shape": [int(size) for size in reversed(tensor.shape)],
                        "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, tensor in named:
            file.write(values(tensor, name, settings).astype("<f4", copy=False).data)


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: gguf_folder.py FILE.gguf FOLDER")
    reader, folder = GGUFReader(sys.argv[1]), Path(sys.argv[2])
    fields = Fields(reader)
    if fields["general.architecture"] != "llama":
        sys.exit(f"gguf_folder.py: {sys.argv[1]}: it is no Llama, but {fields['general.architecture']}")
    if folder.exists():
        sys.exit(f"gguf_folder.py: {folder} is there already")
    settings = config(fields, all(tensor.name != "output.weight" for tensor in reader.tensors))
    half = folder.with_name(folder.name + ".unfinished")
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir(parents=True)
    write_weights(half / "model.safetensors", reader.tensors, settings)
    write_json(half / "config.json", {name: value for name, value in settings.items() if value is not None})
    ends = {name: settings[name] for name in ("bos_token_id", "eos_token_id") if settings[name] is not None}
    write_json(half / "generation_config.json", ends)
    write_json(half / "tokenizer.json", tokenizer(fields))
    write_json(half / "tokenizer_config.json", tokenizer_config(fields))
    os.rename(half, folder)
    print(f"{folder}: {sum(int(tensor.n_elements) for tensor in reader.tensors):,} parameters in "
          f"{len(reader.tensors)} tensors, {len(fields['tokenizer.ggml.tokens']):,} tokens")


if __name__ == "__main__":
    main()
