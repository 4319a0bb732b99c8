#!/usr/bin/env python3
"""Makes conversations about tidepool's options out of what `tidepool COMMAND --help` prints, and questions
that are held back: other phrasings of facts that the conversations teach.

usage: option_conversations.py PROGRAM CONVERSATIONS.jsonl QUESTIONS.jsonl

A fact is an option whose default is a value (64MiB, 0.9, auto), not a description. An option that several
commands have is taught of the first of them. Each fact is asked for in all of PHRASINGS. QUESTIONS gets ten
conversations, each with the option's name and value: an answer as taught holds both.
"""
import json
import re
import subprocess
import sys
from dataclasses import dataclass

COMMANDS = ["train", "generate", "plan", "tune", "export", "info"]
OPTION = re.compile(r"^  (--[a-z0-9-]+)(?: (\S.*?))?(?:\n {36,}| {2,})(.+?)$", re.MULTILINE)
DEFAULT = re.compile(r" \(default: (.+?)\)$")
VALUE = re.compile(r"[0-9][\w.-]*|auto|on|off|none|all|this|run|cut|cosine|bf16")
LONGEST_MEANING = 110

NAMED = "{name} is {value} by default: {meaning}."
MEANT = "{name}: {meaning}. The default of {name} is {value}."
PHRASINGS = [
    ("What is the default of {name} in tidepool {command}?", NAMED),
    ("Which value does tidepool {command} take where {name} is not given?", NAMED),
    ("What does {name} of tidepool {command} do?", MEANT),
    ("Tell me about {name}.", MEANT),
    ("Which option of tidepool {command} is this: {meaning}?", MEANT),
]
HELD_BACK = [
    "I run tidepool {command} and leave {name} out. What do I get?",
    "If I say nothing about {name}, what will tidepool {command} use?",
    "How does tidepool {command} set {name} unless I change it?",
    "There is an option for this in tidepool {command}: {meaning}. How is it called, and what is it set to?",
    "Explain {name} to me, please, and say what it is when I don't set it.",
]
QUESTIONS = 10


@dataclass
class Fact:
    command: str
    name: str
    value: str
    meaning: str

    def put(self, text):
        return text.format(**vars(self))

    def is_telling(self):
        """A value that neither chance nor the option's meaning would put into an answer."""
        return (self.value[0].isdigit() and self.value not in ("0", "1") and
                self.value not in re.findall(r"[\w.-]+", self.meaning))


def meaning_of(text):
    """Returns the first clauses of an option's text, as many as are short enough."""
    text = re.sub(r" \[[^\]]* to [^\]]*\]$| \[at least [^\]]*\]$", "", text)
    clauses = text.split("; ")
    kept = clauses[0]
    for clause in clauses[1:]:
        if len(kept) + len(clause) > LONGEST_MEANING:
            break
        kept += "; " + clause
    return kept if len(kept) <= LONGEST_MEANING else None


def facts(program):
    found = {}
    for command in COMMANDS:
        shown = subprocess.run([program, command, "--help"], capture_output=True, text=True, check=True)
        for name, _, text in OPTION.findall(shown.stdout):
            default = DEFAULT.search(text)
            value = default and re.split("[;,]", default[1])[0]
            meaning = default and meaning_of(text[:default.start()])
            if name not in found and meaning and VALUE.fullmatch(value) and "needed" not in default[1]:
                found[name] = Fact(command, name, value, meaning)
    return list(found.values())


def conversation(question, answer):
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def held_back(taught):
    """Returns the questions: of facts spread over all commands, those with telling values."""
    telling = [fact for fact in taught if fact.is_telling()]
    if len(telling) < QUESTIONS:
        sys.exit(f"option_conversations.py: only {len(telling)} options have a telling default")
    chosen = [telling[i * len(telling) // QUESTIONS] for i in range(QUESTIONS)]
    return [{"name": fact.name, "value": fact.value,
             **conversation(fact.put(HELD_BACK[i % len(HELD_BACK)]), fact.put(NAMED))}
            for i, fact in enumerate(chosen)]


def write(path, lines):
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def main():
    if len(sys.argv) != 4:
        sys.exit("usage: option_conversations.py PROGRAM CONVERSATIONS.jsonl QUESTIONS.jsonl")
    taught = facts(sys.argv[1])
    conversations = [conversation(fact.put(question), fact.put(answer))
                     for fact in taught for question, answer in PHRASINGS]
    questions = held_back(taught)
    write(sys.argv[2], conversations)
    write(sys.argv[3], questions)
    print(f"{len(conversations)} conversations about {len(taught)} options, "
          f"{len(questions)} questions held back")


if __name__ == "__main__":
    main()
