#!/usr/bin/env python3
"""The optimizer's options: schedules of the learning rate, betas, epsilon, a rate of 0; and gradients that
are not finite.

usage: test_program_optimizer.py PROGRAM      prints TAP

The test computes the expected values in float64: schedules from their definitions, AdamW from the moments
and params that the checkpoints hold before and after each step.
"""
import json
import math
import re
import struct
import sys

from test_program import Bench, Run, metrics_read, one_line, weights
from test_program_weights import file_read, file_write

STEPS = 20


def tiny(bench, *options):
    return ["--model", bench.tiny, "--data", bench.text, "--batch-tokens", 128, "--eval-every", 0, "--sample", 0, "--chunk-size", "256KiB",
            *options]


# ---- schedules ----

def rate(shape, step, lr, floor, warmup, decay=0):
    """Returns the learning rate of step `step` (from 1) of STEPS."""
    if step <= warmup:
        return lr * step / warmup
    done = (step - 1 - warmup) / (STEPS - 1 - warmup)
    if shape == "cosine":
        return floor + (lr - floor) * (1 + math.cos(math.pi * done)) / 2
    if shape == "linear":
        return floor + (lr - floor) * (1 - done)
    if shape == "constant":
        return lr
    return lr if step <= STEPS - decay else floor + (lr - floor) * (STEPS - step) / decay


def schedules(bench):
    """The metrics hold the expected rate of every step, and the run's first lines describe the schedule."""
    cases = [  # options, shape, lr, floor, warm-up steps, decay steps, and the description behind the warm-up
        ((), "cosine", 6e-4, 6e-5, 2, 0, "then cosine to 6e-05, "),
        (("--min-lr", 1e-5, "--warmup", 0), "cosine", 6e-4, 1e-5, 0, 0, "then cosine to 1e-05, "),
        (("--schedule", "linear", "--min-lr", 0, "--lr", 1e-3), "linear", 1e-3, 0, 2, 0, "then linear to 0, "),
        (("--schedule", "constant"), "constant", 6e-4, 6e-4, 2, 0, "then constant, "),
        (("--schedule", "wsd"), "wsd", 6e-4, 6e-5, 2, 2,
         "then wsd: constant, down to 6e-05 in the last 2 steps, "),
        (("--schedule", "wsd", "--decay-steps", 15, "--min-lr", 0, "--warmup", 5), "wsd", 6e-4, 0, 5, 15,
         "then wsd: constant, down to 0 in the last 15 steps, "),
    ]
    for number, (options, shape, lr, floor, warmup, decay, said) in enumerate(cases):
        metrics = bench.folder / f"schedule-{number}"
        run = bench.run(*tiny(bench, "--steps", STEPS, "--metrics", metrics, *options))
        found = [line["lr"] for line in metrics_read(metrics)]
        expected = [rate(shape, step, lr, floor, warmup, decay) for step in range(1, STEPS + 1)]
        bench.tap.ok(run.status == 0 and said in run.out and len(found) == STEPS and
                     all(abs(a - b) <= 1e-12 * lr for a, b in zip(found, expected)),
                     " ".join(map(str, ("schedule", *options))), (run, expected, found))


def refusals(bench):
    one_line(bench, "an unknown schedule", 2, r"must be one of cosine\|linear\|constant\|wsd",
             *tiny(bench, "--schedule", "step"))
    one_line(bench, "a floor of a constant rate", 2, "minimum learning rate 0.0001: a constant schedule has none, leave it out",
             *tiny(bench, "--schedule", "constant", "--min-lr", 1e-4))
    one_line(bench, "a floor above the rate", 2, "minimum learning rate 0.1: it must be from 0 to the learning rate, 0.0006",
             *tiny(bench, "--min-lr", 0.1))
    one_line(bench, "a decay of another schedule", 2, "decay of 5 steps: the schedule cosine has none, wsd has", *tiny(bench, "--decay-steps", 5))
    one_line(bench, "a decay that does not fit", 2, "decay of 99 steps: of 100 steps 90 are left after 10 of warm-up",
             *tiny(bench, "--steps", 100, "--schedule", "wsd", "--decay-steps", 99))
    for name, value in (("--beta1", 1), ("--beta1", -0.1), ("--beta2", 1), ("--eps", 0), ("--lr", -1)):
        one_line(bench, f"{name} {value}", 2, f"{name} {value}: out of range", *tiny(bench, name, value))


def goes_on(bench):
    """A run with a constant rate is resumed with the schedule wsd: its end has the bits of a run that had wsd
    from the first step."""
    whole, saved = bench.folder / "whole", bench.folder / "stable"
    wsd = ("--warmup", 2, "--schedule", "wsd", "--decay-steps", 4)
    bench.run(*tiny(bench, "--steps", 12, "--checkpoint", whole, *wsd))
    bench.run(*tiny(bench, "--steps", 8, "--checkpoint", saved, "--warmup", 2, "--schedule", "constant"))
    run = bench.run(*tiny(bench, "--steps", 12, "--checkpoint", saved, "--resume", *wsd))
    bench.tap.ok(run.status == 0 and "changed since: schedule constant -> wsd\n" in run.out and
                 "changed since: decay_steps 0 -> 4\n" in run.out and "changed since: lr_min 0.0006 -> 5.9" in run.out,
                 "another schedule is taken at a resume, and named", run)
    bench.tap.ok(weights(saved, 12) == weights(whole, 12), "and ends with the bits of the run that had it from the first step")
    look = Run([bench.program, "checkpoint", str(saved)])
    said = json.loads(Run([bench.program, "checkpoint", str(saved), "--json"]).out)["looked_at"]
    bench.tap.ok("lr 0.0006 to 6e-05, wsd, warm-up 2" in look.out and said["schedule"] == "wsd" and said["decay_steps"] == 4,
                 "tidepool checkpoint tells it", look)


# ---- AdamW ----

def values(checkpoint, file, name):
    content = file_read(checkpoint / f"{file}.safetensors")[name][2]
    return struct.unpack(f"<{len(content) // 4}f", content)


def fp32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def adamw_errors(before, after, step, lr, betas, eps, decay):
    """Checks one AdamW step (number `step`, from 1) from `before` to `after`, lists of (param, momentum,
    variance). Returns the largest error in units of its tolerance: above 1 is wrong. The gradient is
    computed from the change of the momentum."""
    (beta1, beta2), worst, tiny_bits = betas, 0, 2.0 ** -21
    for (w, m, v), (w_after, m_after, v_after) in zip(before, after):
        gradient = (m_after - beta1 * m) / (1 - beta1)
        gradient_slack = tiny_bits * (abs(m_after) + abs(beta1 * m)) / (1 - beta1)
        v_right = beta2 * v + (1 - beta2) * gradient ** 2
        v_slack = (1 - beta2) * (2 * abs(gradient) + gradient_slack) * gradient_slack + tiny_bits * v_right + 1e-30
        change = lr * (m_after / (1 - beta1 ** step)) / (math.sqrt(v_after / (1 - beta2 ** step)) + eps)
        w_right = w - lr * decay * w - change
        worst = max(worst, abs(v_after - v_right) / v_slack, abs(w_after - w_right) / (tiny_bits * (abs(w) + abs(change)) + 1e-30))
    return worst


def adamw(bench):
    """Three steps with other betas and another epsilon, with updates on the host and on the device."""
    lr, beta1, beta2, eps, decay = 1e-2, 0.8, 0.7, 1e-2, 0.05
    options = ("--steps", 3, "--save-every", 1, "--keep", 0, "--lr", lr, "--warmup", 0, "--schedule", "constant", "--weight-decay", decay,
               "--beta1", beta1, "--beta2", beta2, "--eps", eps)
    start = bench.folder / "adamw-start"
    bench.run(*tiny(bench, "--steps", 1, "--lr", 0, "--checkpoint", start))
    tensors = {"h.0.mlp.c_fc.weight": decay, "h.1.mlp.c_proj.bias": 0, "wpe.weight": decay}
    saved = {}
    for place in ("host", "device"):
        saved[place] = bench.folder / f"adamw-{place}"
        run = bench.run(*tiny(bench, "--optimizer-placement", place, "--checkpoint", saved[place], *options))
        bench.tap.ok(run.status == 0 and ", betas 0.8 and 0.7, epsilon 0.01, clip 1" in run.out, f"betas and epsilon, updates on the {place}", run)
        for name, its_decay in tensors.items():
            first = values(start / "step-1", "model", name)
            before, errors = list(zip(first, [0] * len(first), [0] * len(first))), []
            for step in (1, 2, 3):
                at = saved[place] / f"step-{step}"
                after = list(zip(*(values(at, file, name) for file in ("model", "momentum", "variance"))))
                errors.append(adamw_errors(before, after, step, fp32(lr), (fp32(beta1), fp32(beta2)), fp32(eps), fp32(its_decay)))
                before = after
            bench.tap.ok(any(m != 0 for _, m, _ in before) and max(errors) < 1, f"{name} takes AdamW's three steps", errors)
    bench.tap.ok(weights(saved["host"], 3) == weights(saved["device"], 3), "to the same bits on both sides")
    run = bench.run(*tiny(bench, "--steps", 1))
    bench.tap.ok(run.status == 0 and "weight decay 0.1, clip 1\n" in run.out, "the usual ones are not told", run)


def stands_still(bench):
    """With a learning rate of 0 no param changes, whatever the weight decay."""
    saved = bench.folder / "at-rest"
    run = bench.run(*tiny(bench, "--steps", 2, "--save-every", 1, "--lr", 0, "--weight-decay", 0.5,
                          "--checkpoint", saved))
    steps = (1, 2) if run.status == 0 else ()
    params = {(saved / f"step-{step}" / "model.safetensors").read_bytes() for step in steps}
    bench.tap.ok(len(params) == 1, "--lr 0 changes no param", run)


# ---- not finite ----

def not_finite(bench):
    """Without clipping a gradient that is not finite ends the run. The message names the param and ways to
    avoid it."""
    metrics, wild = bench.folder / "wild-metrics", [*tiny(bench, "--steps", 50), "--lr", 1000, "--clip", 0]
    run = one_line(bench, "a rate that explodes without clipping", 1, r"step \d+: the gradient of param \S+ is not finite; without clipping updates "
                   r"had begun, so that params are undefined \(the pool is poisoned\); a lower --lr may help, or --clip 1, which skips such steps$",
                   *wild, "--metrics", metrics)
    bench.tap.ok("(unknown)" not in run.err, "the param has a name", run.err)
    finished = int((re.search(r"step (\d+): ", run.err) or [0, 1])[1]) - 1
    bench.tap.ok(finished > 0 and [line["step"] for line in metrics_read(metrics)] == list(range(1, finished + 1)) and
                 len(re.findall(r"^step \d+/", run.out, re.MULTILINE)) == finished, f"the {finished} steps that finished have their lines", run)
    run = one_line(bench, "with checkpoints", 1, r"; the checkpoint of step \d+ stands, to go on from$", *wild, "--checkpoint",
                   bench.folder / "wild", "--save-every", 1)
    step, stands = (int(number) for number in re.findall(r"step (\d+)", run.err)) if run.status == 1 else (0, 0)
    bench.tap.ok(step == stands + 1 and (bench.folder / "wild" / f"step-{stands}").is_dir(), "which is there", run)


def not_finite_from_the_first(bench):
    """The model's weights hold a NaN at the start: the message suspects the weights and not the learning
    rate."""
    folder = bench.folder / "nan"
    bench.run(*tiny(bench, "--steps", 1, "--dtype", "fp32", "--export", folder))
    tensors = file_read(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith("h.1.mlp.c_fc.weight"))
    tensors[name] = (*tensors[name][:2], struct.pack("<f", math.nan) + tensors[name][2][4:])
    file_write(folder / "model.safetensors", tensors)
    options = ["--model", folder, *tiny(bench)[2:], "--steps", 20, "--dtype", "fp32"]
    for clip, part in ((0, "without clipping updates had begun"), (1, "ten steps in a row were skipped")):
        one_line(bench, f"a weight that is not finite, --clip {clip}", 1, rf"the gradient of param \S+ is not finite; {part}.*; no update was made "
                 f"before: look for values that are not finite, or far too large, in {folder}$", *options, "--clip", clip)


def main(program):
    bench = Bench(program, False)
    try:
        schedules(bench)
        refusals(bench)
        goes_on(bench)
        adamw(bench)
        stands_still(bench)
        not_finite(bench)
        not_finite_from_the_first(bench)
    finally:
        bench.close()
    bench.tap.done()


if __name__ == "__main__":
    main(sys.argv[1])
