#!/usr/bin/env python3
"""Asks a model the questions of option_conversations.py, and sums up tools/demo_finetune.sh.

usage: demo_answers.py ask MODEL QUESTIONS.jsonl COUNT ANSWERS.json [OPTION of tidepool-tokenize ...]
       demo_answers.py sum QUESTIONS.jsonl BEFORE.json AFTER.json TRAIN.log METRICS.jsonl STEPS|all

`ask` asks the first COUNT questions, each in a conversation of its own, greedily, and writes the answers as a
list. It fails if no answer comes. `sum` shows two answers before and after, and what training took. An answer
is as taught if it holds the option's name and value. Exit status 0 if at least eight of ten answers are as
taught after training, and at most two were before; after a short run (STEPS), if each question has an answer
before and after. In both cases the budget of device memory must be at most a quarter of the model data, and
the run must have stayed within it.
"""
import json
import re
import subprocess
import sys
import textwrap
from itertools import zip_longest
from pathlib import Path

TOOL = Path(__file__).resolve().parents[1] / "tokenize/tidepool-tokenize"
MIB = 1 << 20
LEAST_AFTER, MOST_BEFORE = 8, 2
COLUMN = 50


def lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def asked(question):
    return question["messages"][0]["content"]


def ask(model, questions, count, out, *options):
    answers = []
    for question in lines(questions)[:int(count)]:
        command = [sys.executable, TOOL, "--chat-with", model, "--tokens", "64", *options]
        done = subprocess.run([*map(str, command[:4]), "--ask", asked(question), *command[4:]],
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"demo: {done.stderr.strip() or f'tidepool-tokenize ended with {done.returncode}'}")
        answers.append(done.stdout.strip())
    Path(out).write_text(json.dumps(answers, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return 0


def is_as_taught(question, answer):
    def has(text):
        return re.search(rf"(?<![\w.-]){re.escape(text)}(?![\w-]|\.\d)", answer)

    return bool(has(question["name"]) and has(question["value"]))


def number(log, pattern):
    found = re.findall(pattern, log)
    if not found:
        sys.exit(f"demo: the log has no {pattern!r}")
    return float(found[-1].replace(",", ""))


def show(question, before, after):
    print(f"\n{asked(question)}")
    columns = (["before", *textwrap.wrap(before, COLUMN)], ["after", *textwrap.wrap(after, COLUMN)])
    for left, right in zip_longest(*columns, fillvalue=""):
        print(f"  {left:<{COLUMN}}  {right}".rstrip())


def sum_up(questions, before, after, log, metrics, steps):
    questions, rows = lines(questions), lines(metrics)
    before, after = (json.loads(Path(path).read_text(encoding="utf-8")) for path in (before, after))
    log = Path(log).read_text(encoding="utf-8", errors="replace")
    model, budget = (number(log, rf"{name} +([0-9,]+) B") for name in ("model data", "device budget"))
    peak = max(row["device_bytes_peak"] for row in rows)
    seconds = sum(row["step_seconds"] for row in rows)
    taught = [sum(map(is_as_taught, questions, answers)) for answers in (before, after)]
    for question, *answers in list(zip(questions, before, after))[:2]:
        show(question, *answers)
    print(f"\nmodel data        {model / MIB:8.1f} MiB")
    print(f"device budget     {budget / MIB:8.1f} MiB   {budget / model:.2f} of the model data; "
          f"peak {peak / MIB:.1f} MiB")
    print(f"training          {seconds:8.0f} s     {len(rows)} steps, "
          f"{sum(row['tokens'] for row in rows) / seconds:.0f} tokens/s")
    good = 4 * budget <= model and peak <= budget
    if steps == "all":
        print(f"answers           {taught[1]:3d} of {len(after)} as taught, {taught[0]} before")
        good &= len(after) == len(before) == len(questions)
        good &= taught[1] >= LEAST_AFTER and taught[0] <= MOST_BEFORE
    else:
        print(f"answers           {len(after):8d}       before and after; {steps} steps teach little")
        good &= len(rows) == int(steps) and all(before) and all(after) and len(before) == len(after)
    print("demo: " + ("done" if good else "FAILED: see the table"))
    return 0 if good else 1


if __name__ == "__main__":
    ACT = {"ask": ask, "sum": sum_up}
    if len(sys.argv) < 2 or sys.argv[1] not in ACT:
        sys.exit(__doc__.split("\n\n")[1])
    sys.exit(ACT[sys.argv[1]](*sys.argv[2:]))
