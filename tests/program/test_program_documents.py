#!/usr/bin/env python3
"""Training on shards with documents and masks: packing, epochs, resume, the best checkpoint, refusals.

usage: test_program_documents.py PROGRAM      prints TAP

The test writes the shards itself, from the description at the top of src/data/token_documents.c.
"""

import hashlib
import json
import math
import os
import random
import re
import struct
import sys
from pathlib import Path

from test_program import MACHINE, Bench, Run, metrics_read, one_line, trajectory, weights

SEQUENCE, BATCH = 32, 256  # tokens; a batch has eight sequences
VOCABULARY = 257
CRC_TABLE = []


def crc32c(content):
    """CRC-32C by a table, made at the first call."""
    if not CRC_TABLE:
        for byte in range(256):
            for _ in range(8):
                byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
            CRC_TABLE.append(byte)
    crc = 0xFFFFFFFF
    for byte in content:
        crc = CRC_TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def shard(path, documents, tokenizer=b""):
    """`documents`: for each a list of (token, is it learned?)."""
    pairs = [pair for document in documents for pair in document]
    starts = [sum(map(len, documents[:i])) for i in range(len(documents))]
    mask = bytearray((len(pairs) + 7) // 8)
    for i, (_, learned) in enumerate(pairs):
        mask[i // 8] |= learned << i % 8
    content = b"TIDETOK1" + struct.pack("<IIQQII", 1, 2, len(pairs), len(documents), VOCABULARY, 0)
    content += tokenizer[:24].ljust(24, b"\0")
    for section in (
        struct.pack(f"<{len(pairs)}H", *(token for token, _ in pairs)),
        bytes(mask),
        struct.pack(f"<{len(starts)}Q", *starts),
    ):
        content += bytes(-len(content) % 8) + section
    path.write_bytes(content + struct.pack("<I", crc32c(content)))


def conversations(count, longest, seed=3):
    """Documents of 2 to `longest` tokens; the second half of each is learned."""
    generator = random.Random(seed)
    made = []
    for i in range(count):
        length = generator.randint(2, longest)
        made.append([((7 * i + 3 * j) % VOCABULARY, j >= length // 2) for j in range(length)])
    return made


def best_fit(lengths, most):
    """How many sequences best fit, longest first, makes of documents of so many positions."""
    free = []
    for length in sorted(lengths, reverse=True):
        fits = [i for i, space in enumerate(free) if space >= length]
        if fits:
            free[min(fits, key=lambda i: free[i])] -= length
        else:
            free.append(most - length)
    return len(free)


class Shards:
    """A bench with a shard for training and one for validation, and options to train on them."""

    def __init__(self, bench):
        self.bench, self.tap, self.folder = bench, bench.tap, bench.folder
        self.documents = conversations(150, SEQUENCE + 1)
        self.train, self.val = self.folder / "train.bin", self.folder / "val.bin"
        shard(self.train, self.documents)
        shard(self.val, conversations(20, SEQUENCE + 1, seed=4))
        self.sequences = best_fit([len(document) - 1 for document in self.documents], SEQUENCE)

    def options(self, *more, data=None):
        return [
            "--model",
            self.bench.tiny,
            "--data",
            data or self.train,
            *([] if data else ["--eval-data", self.val]),
            "--seq-len",
            SEQUENCE,
            "--batch-tokens",
            BATCH,
            "--sample",
            0,
            *([] if "--chunk-size" in more else ["--chunk-size", "256KiB"]),
            *more,
        ]

    def run(self, name, *more, data=None):
        """Trains with metrics and a checkpoint folder called `name`; returns the run and both paths."""
        metrics, folder = self.folder / f"{name}.jsonl", self.folder / name
        run = self.bench.run(
            *self.options("--metrics", metrics, "--checkpoint", folder, "--checks", "on", *more, data=data)
        )
        if run.status != 0:
            self.tap.ok(False, f"{name} trains", run)
        return run, metrics, folder


def packing(at):
    """The head's figures, the metrics' counts, and the end of an epoch."""
    steps = -(-at.sequences // 8)
    run, metrics, folder = at.run("packed", "--epochs", 2, "--keep-best", "--save-every", 2 * steps)
    lines = metrics_read(metrics)
    positions, learned = sum(len(d) - 1 for d in at.documents), sum(
        was for d in at.documents for _, was in d[1:]
    )
    padding = 100 - 100 * positions / (at.sequences * SEQUENCE)
    at.tap.ok(
        f"packed for training: 150 documents in {at.sequences} sequences, {padding:.1f}% padding" in run.out,
        "the head says how well the documents fill sequences",
        run,
    )
    at.tap.ok(
        len(lines) == 2 * steps and f"2 epochs, {2 * steps} steps" in run.out,
        "the steps of two epochs are counted",
        run.out[:600],
    )
    at.tap.ok(all(line["tokens"] == BATCH for line in lines), "tokens counts all of a step")
    epochs = [sum(line["learned_tokens"] for line in lines[e * steps :][:steps]) for e in range(2)]
    at.tap.ok(epochs == [learned, learned], "each epoch learns each learned token once", epochs)
    at.tap.ok(
        re.search(rf"validation after step {steps}:.*\n", run.out)
        and f"validation after step {2 * steps}:" in run.out,
        "an evaluation ends each epoch",
        run,
    )
    told = Run([at.bench.program, "checkpoint", "--json", str(folder)])
    at.tap.ok(re.search(rf'"best_step": ?{2 * steps}\b', told.out), "the last step can be the best", told)


def alone(at):
    """A document's neighbours in its sequence do not matter: with a learning rate of 0 the weighted losses of
    two epochs, which pack other documents together, have one sum. It is the loss of an untrained model."""
    steps = -(-at.sequences // 8)
    run, metrics, _ = at.run("alone", "--epochs", 2, "--lr", 0, "--dtype", "fp32")
    sums = [
        sum(line["loss"] * line["learned_tokens"] for line in metrics_read(metrics)[e * steps :][:steps])
        for e in range(2)
    ]
    mean = sums[0] / sum(line["learned_tokens"] for line in metrics_read(metrics)[:steps])
    at.tap.ok(abs(sums[0] - sums[1]) < 1e-5 * sums[0], "documents do not see each other", sums)
    validation = float(re.search(r"validation after step \d+: loss ([0-9.]+)", run.out)[1])
    at.tap.ok(
        abs(mean - math.log(VOCABULARY)) < 0.2 and abs(validation - math.log(VOCABULARY)) < 0.2,
        "losses are means over the learned tokens",
        (mean, validation),
    )


def same_bits(at):
    """Another budget, chunk size, prefetch and recompute; a resume in the middle of the second epoch."""
    steps = -(-at.sequences // 8)
    middle = steps + steps // 2
    options = ["--epochs", 2, "--save-every", middle, "--keep", 0]
    _, metrics, folder = at.run("whole", *options)
    _, tight, tight_folder = at.run(
        "tight",
        *options,
        "--device-memory",
        "1700KiB",
        "--recompute",
        "all",
        "--prefetch",
        "off",
        "--optimizer-placement",
        "host",
    )
    _, large, large_folder = at.run("large", *options, "--chunk-size", "1MiB")
    for name, of, other in (
        ("a tight budget", tight, tight_folder),
        ("another chunk size", large, large_folder),
    ):
        at.tap.ok(
            trajectory(of) == trajectory(metrics) and weights(other, 2 * steps) == weights(folder, 2 * steps),
            f"packed: {name} changes no bit",
        )
    again = at.folder / "again.jsonl"
    run = at.bench.run(
        *at.options(
            "--epochs",
            2,
            "--resume-from",
            folder / f"step-{middle}",
            "--checkpoint",
            at.folder / "again",
            "--metrics",
            again,
        )
    )
    rest = {step: of for step, of in trajectory(metrics).items() if step > middle}
    at.tap.ok(
        run.status == 0
        and trajectory(again) == rest
        and weights(at.folder / "again", 2 * steps) == weights(folder, 2 * steps),
        "a resume in the middle of an epoch changes no bit",
        run,
    )
    told = Run([at.bench.program, "checkpoint", "--json", str(folder)])
    at.tap.ok(
        told.status == 0 and '"epoch":2' in told.out, "the checkpoint says how many epochs are over", told
    )
    one_line(
        at.bench,
        "a resume without packing",
        1,
        "packing cut, this run has off",
        *at.options("--epochs", 2, "--checkpoint", folder, "--resume", "--packing", "off"),
    )
    micro = trajectory(at.run("micro", "--epochs", 1, "--micro-batch", 1)[1])
    whole = trajectory(at.run("one", "--epochs", 1, "--micro-batch", 8)[1])
    apart = max(abs(micro[step][0] - whole[step][0]) for step in whole)
    at.tap.ok(
        len(micro) == steps and apart < 2e-3, "micro-batches of very uneven masks change rounding only", apart
    )


def best(at):
    """The validation data is nothing like the training data, so that its loss is the least after the first
    epoch: --keep-best keeps that checkpoint, and a resumed run does."""
    steps = -(-at.sequences // 8)
    noise, generator = at.folder / "noise.bin", random.Random(8)
    shard(noise, [[(generator.randrange(VOCABULARY), True) for _ in range(SEQUENCE)] for _ in range(12)])

    def kept(epochs, *more):
        run, _, folder = at.run(
            "best",
            "--eval-data",
            noise,
            "--epochs",
            epochs,
            "--lr",
            "1e-2",
            "--schedule",
            "constant",
            "--keep-best",
            "--keep",
            1,
            *more,
            data=at.train,
        )
        losses = [float(loss) for loss in re.findall(r"validation after step \d+: loss ([0-9.]+)", run.out)]
        return sorted(int(path.name[5:]) for path in folder.glob("step-*")), losses, folder, run

    there, losses, folder, run = kept(3)
    at.tap.ok(
        len(losses) == 3 and min(losses) == losses[0] and there == [steps, 3 * steps],
        "--keep-best keeps the best checkpoint",
        (there, run),
    )
    told = Run([at.bench.program, "checkpoint", "--json", str(folder)]).out
    found = float(re.search(r'"best_loss": ?([0-9.e-]+)', told)[1])
    at.tap.ok(
        re.search(rf'"best_step": ?{steps}\b', told) and abs(found - losses[0]) < 1e-4,
        "the checkpoint says which is the best",
        told,
    )
    there, _, _, run = kept(5, "--resume")
    at.tap.ok(there == [steps, 5 * steps], "a resumed run keeps the best checkpoint", (there, run))


def other_data(at):
    """Epochs of new data begin where the old run stood; a best loss of other validation data does not count."""
    steps = -(-at.sequences // 8)
    _, _, old = at.run("old", "--steps", 7, "--keep-best", "--keep", 0)
    new = at.folder / "new.bin"
    shard(new, conversations(150, SEQUENCE + 1))
    run, metrics, folder = at.run(
        *("again-new", "--resume-from", old / "step-7", "--new-data", "--eval-data", at.val, "--epochs", 2),
        *("--keep-best", "--keep", 0),
        data=new,
    )
    validated = re.findall(r"validation after step (\d+)", run.out)
    at.tap.ok(
        [line["step"] for line in metrics_read(metrics)] == list(range(8, 8 + 2 * steps))
        and validated == [str(7 + steps), str(7 + 2 * steps)],
        "all epochs of new data are trained",
        run,
    )
    told = Run([at.bench.program, "checkpoint", "--json", str(folder)])
    at.tap.ok(re.search(r'"epoch": ?2', told.out), "they are counted from the new data's begin", told)
    run, _, _ = at.run(
        *("again-new", "--resume", "--eval-data", new, "--epochs", 3, "--keep-best", "--keep", 0), data=new
    )
    at.tap.ok("the best so far" in run.out, "other validation data has another best loss", run)


def masks(at):
    """What is learned with packing off, and data of which nothing is learned."""
    run, metrics, _ = at.run("flat", "--steps", 2, "--packing", "off")
    at.tap.ok(
        all(0 < line["learned_tokens"] < BATCH for line in metrics_read(metrics)) and "packed" not in run.out,
        "--packing off: the mask holds, documents follow each other",
        run,
    )
    dull = at.folder / "dull.bin"
    shard(dull, [[(token, False) for token, _ in document] for document in at.documents])
    one_line(
        at.bench,
        "data of which nothing is learned",
        1,
        "of its 150 documents 0 fit",
        *at.options("--steps", 1, data=dull),
    )
    run, metrics, _ = at.run("flat-dull", "--steps", 2, "--packing", "off", data=dull)
    at.tap.ok(
        all(
            line["loss"] == 0 and line["grad_norm"] == 0 and line["learned_tokens"] == 0
            for line in metrics_read(metrics)
        ),
        "batches of which nothing is learned have loss 0 and no gradient",
        run,
    )
    mixed = at.folder / "mixed.bin"
    shard(mixed, conversations(60, 3 * SEQUENCE))
    for how, word in (("cut", "cut"), ("drop", "left out")):
        run, _, _ = at.run(f"long-{how}", "--steps", 2, "--long", how, "--eval-data", at.val, data=mixed)
        at.tap.ok(re.search(rf"\d+ longer than a sequence: {word}", run.out), f"--long {how} is counted", run)


def refusals(at):
    text, tiny = at.bench.text, at.options
    one_line(
        at.bench,
        "text to pack",
        2,
        "does not say where documents begin",
        *tiny("--steps", 1, "--packing", "on", data=text),
    )
    one_line(at.bench, "epochs and steps", 2, "give one of them", *tiny("--epochs", 1, "--steps", 1))
    one_line(
        at.bench,
        "epochs without data",
        2,
        "--epochs needs --data",
        "--model",
        at.bench.tiny,
        "--epochs",
        1,
        "--device",
        "null",
        *MACHINE,
    )
    one_line(at.bench, "the best without a folder", 2, "--keep-best needs --checkpoint", *tiny("--keep-best"))
    one_line(
        at.bench,
        "the best without losses",
        2,
        "--eval-every 0",
        *tiny("--keep-best", "--checkpoint", at.folder / "none", "--eval-every", 0),
    )
    whole = at.train.read_bytes()
    for name, content, says in (
        ("cut", whole[:-9], "but the file has"),
        ("short", whole[:40], "too short"),
        ("damaged", whole[:100] + b"\x7f" + whole[101:], "checksum"),
    ):
        broken = at.folder / f"{name}.bin"
        broken.write_bytes(content)
        one_line(at.bench, f"a {name} shard", 1, says, *tiny("--steps", 1, data=broken))


def tokenizers(at):
    """A model's folder, whose tokenizer the shard names or not."""
    model = at.folder / "model"
    run = at.bench.run(*at.options("--steps", 1, "--export", model))
    at.tap.ok(run.status == 0, "a model with a folder is trained", run)
    (model / "tokenizer.json").write_text('{"version": "1.0"}')
    other, right = at.folder / "other.bin", at.folder / "right.bin"
    shard(other, at.documents, tokenizer=hashlib.sha256(b"another").digest())
    shard(right, at.documents, tokenizer=hashlib.sha256((model / "tokenizer.json").read_bytes()).digest())
    options = [
        "--model",
        model,
        "--seq-len",
        SEQUENCE,
        "--batch-tokens",
        BATCH,
        "--chunk-size",
        "256KiB",
        "--steps",
        1,
    ]
    one_line(
        at.bench,
        "another tokenizer's shard",
        1,
        "another tokenizer .* --any-tokenizer",
        *options,
        "--data",
        other,
    )
    for name, more in (
        ("the model's own tokenizer", [right]),
        ("--any-tokenizer", [other, "--any-tokenizer"]),
        ("a shard that names none", [at.train]),
    ):
        run = at.bench.run(*options, "--data", *more)
        at.tap.ok(run.status == 0, f"{name} is taken", run)


def bytes_tokenizer(at):
    """A model from nothing whose vocabulary is the bytes and an end of text is exported with a tokenizer."""
    model = at.folder / "bytes"
    run = at.bench.run(*at.options("--steps", 1, "--export", model, data=at.bench.text))
    vocabulary = (
        json.loads((model / "tokenizer.json").read_text())["model"]["vocab"] if run.status == 0 else {}
    )
    own = [byte for byte in range(256) if chr(byte).isprintable() and byte != 0x20]
    others = iter(range(0x100, 0x200))
    letters = {byte: chr(byte) if byte in own else chr(next(others)) for byte in range(256)}
    at.tap.ok(
        vocabulary == {letter: byte for byte, letter in letters.items()}, "each byte's letter is a token", run
    )
    end = json.loads((model / "generation_config.json").read_text())
    at.tap.ok(end == {"eos_token_id": 256}, "the end of text ends an answer", end)
    return model


def pipeline(at, model):
    """From conversations to a trained model, through tidepool-tokenize."""
    python = os.environ.get("TIDE_TOKENIZE_PYTHON", sys.executable)
    if Run([python, "-c", "import transformers, tokenizers, jinja2, numpy, google_crc32c"]).status:
        at.tap.skip("tidepool-tokenize and train", f"{python} lacks a package of tidepool-tokenize")
        return
    chat, out = at.folder / "chat.jsonl", at.folder / "chats"
    turns = [
        [{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": f"{i}!"}] for i in range(60)
    ]
    chat.write_text("".join(json.dumps({"messages": turn}) + "\n" for turn in turns))
    tool = Path(__file__).parents[2] / "tools/tokenize/tidepool-tokenize"
    run = Run([python, tool, "--tokenizer", model, "--chat", chat, "--out", out, "--eval-fraction", "0.2"])
    at.tap.ok(run.status == 0 and len(list(out.glob("*.bin"))) == 2, "conversations become shards", run)
    metrics = at.folder / "chats.jsonl"
    train = at.bench.run(
        *("--model", model, "--data", out, "--seq-len", 64, "--batch-tokens", 256, "--epochs", 1),
        *("--chunk-size", "256KiB", "--metrics", metrics),
    )
    learned = sum(line["learned_tokens"] for line in metrics_read(metrics))
    trained = int(re.search(r"packed for training: (\d+) documents", train.out)[1])
    # An answer is a number, an exclamation mark and the end of text.
    at.tap.ok(
        train.status == 0 and 3 * trained <= learned <= 4 * trained and "named val" in train.out,
        "the model learns the answers alone",
        (learned, trained, train),
    )


def text_epochs(at):
    """Epochs of a text: as many steps as the sequences need; the last step's padding is not learned."""
    short = at.folder / "short.txt"
    short.write_bytes(bytes(32 + i * 7 % 90 for i in range(21 * SEQUENCE + 1)))
    run, metrics, _ = at.run("spoken", "--epochs", 2, data=short)
    lines = metrics_read(metrics)
    at.tap.ok(
        [line["learned_tokens"] for line in lines] == [256, 256, 128] * 2 and "held out" in run.out,
        "an epoch of a text of 20 training sequences ends with padding",
        [line["learned_tokens"] for line in lines],
    )


def main():
    bench = Bench(sys.argv[1], full=False)
    try:
        at = Shards(bench)
        for section in (
            packing,
            alone,
            same_bits,
            best,
            other_data,
            masks,
            refusals,
            tokenizers,
            text_epochs,
        ):
            section(at)
        pipeline(at, bytes_tokenizer(at))
        bench.tap.done()
    finally:
        bench.close()


if __name__ == "__main__":
    main()
