#!/usr/bin/env python3
"""tidepool-tokenize: the learned tokens of conversations against marks written by hand, the other kinds of
input, the files that it writes against a reader of this test's own, and how it fails.

usage: test_program_tokenize.py TOOL [CASE...]      prints TAP

TIDE_TOKENIZE_PYTHON names a Python that has the tool's packages (the default is this one); without them all
cases but one are skipped. CASE is a function of CASES; all run by default. The tokenizers are made here:
byte-level BPE with a few merges, so that one can see in each text where its tokens end. Marks are written as
--decode prints them: learned tokens stand between \u27e6 and \u27e7.
"""
import json
import os
import pty
import re
import resource
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from test_program import Run, Tap, die_with_parent

TOKENS = ["<eos>", "<bos>", "<s>", "<e>", "<h>", "</h>", "<eot>"]
WORDS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]  # added, but not special
# The last two are half of an emoji, and all of a "u" with dots.
MERGES = [("H", "i"), ("\u0120", "Hi"), ("h", "e"), ("\u0120", "he"), ("l", "l"), ("ll", "o"),
          ("\u010a", "\u010a"), ("\u00f0", "\u0141"), ("\u00c3", "\u00bc")]

CHATML = """\
{%- for message in messages %}{{ '<s>' + message.role + '\n' + message.content + '<e>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}"""
# Only the turns behind the user's last keep their reasoning, as in Qwen3.
REASONING = """\
{%- set state = namespace(last=-1) %}
{%- for message in messages %}
{%- if message.role == 'user' %}{% set state.last = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
{%- set content = message.content %}
{%- if message.role == 'assistant' and loop.index0 < state.last %}
{%- set content = content.split('</think>')[-1].lstrip('\n') %}
{%- endif %}
{{- '<s>' + message.role + '\n' + content + '<e>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<s>assistant\n' + prompt_end }}{% endif %}"""
NO_THOUGHT = "{% set prompt_end = '<think>\\n\\n</think>\\n\\n' %}"
LLAMA = """\
{{- bos_token }}
{%- if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set messages = messages[1:] %}
{%- else %}{% set system = 'Today is ' + strftime_now('%Y') | length | string + ' digits.' %}{% endif %}
{{- '<h>system</h>\n\n' + system | trim + '<eot>' }}
{%- for message in messages %}
{{- '<h>' + message.role + '</h>\n\n' + message.content | trim + '<eot>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<h>assistant</h>\n\n' }}{% endif %}"""
TOOLS = """\
{%- if tools %}{{ '<s>system\nTools:' }}
{%- for tool in tools %}{{ ' ' + tool | tojson }}{% endfor %}{{ '<e>\n' }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}{{ '<s>user\nResult: ' + message.content + '<e>\n' }}
{%- else %}{{ '<s>' + message.role + '\n' + message.content | default('') }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>' + call.function.name + ' ' + call.function.arguments | tojson + '</tool_call>' }}
{%- endfor %}
{{- '<e>\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}"""
ALTERNATING = """\
{%- for message in messages %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('roles must\nalternate') }}
{%- endif %}
{{- message.role + ': ' + message.content + eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"""
# The end token ends each rendering without a prompt, as in Phi-3.
ENDING = """\
{%- for message in messages %}{{ message.role + '</h>' + message.content + '<eot>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ 'assistant</h>' }}{% else %}{{ eos_token }}{% endif %}"""
OTHERWISE = """\
{%- for message in messages %}
{{- message.role + (' (last)' if loop.last else '') + ': ' + message.content + eos_token }}
{%- endfor %}"""
TEMPLATES = {"chatml": CHATML, "reasoning": REASONING.replace(" + prompt_end", ""),
             "no-thought": NO_THOUGHT + REASONING, "llama": LLAMA, "tools": TOOLS, "alternating": ALTERNATING,
             "ending": ENDING, "otherwise": OTHERWISE}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def system(text):
    return {"role": "system", "content": text}


TOOL = {"type": "function", "function": {"name": "add"}}
CALL = {"role": "assistant", "content": None,
        "tool_calls": [{"function": {"name": "add", "arguments": {"a": 2, "b": "\u00fc"}}}]}
SUMS = [user("2+2"), assistant("<think>\nfour\n</think>\n\n4"),
        user("3*3"), assistant("<think>\nnine\n</think>\n\n9")]
TWO = [user("Hi"), assistant("Hello"), user("and"), assistant("bye")]

# Template, line, and the documents that it becomes.
MARKED = [
    ("chatml", {"messages": [system("Be kind."), *TWO]},
     ["<s>system\nBe kind.<e>\n<s>user\nHi<e>\n<s>assistant\n⟦Hello<e>⟧\n"
      "<s>user\nand<e>\n<s>assistant\n⟦bye<e>⟧\n"]),
    ("chatml", {"messages": [user("Hi"), assistant(" Hi\n"), user("left out")]},
     ["<s>user\nHi<e>\n<s>assistant\n⟦ Hi\n<e>⟧\n"]),
    ("chatml", {"messages": [user("\U0001f98a\u00fc"), assistant("\u00fc\U0001f98a\u00e9"),
                              user("\U0001f98a"), assistant("\U0001f98a")]},
     ["<s>user\n\U0001f98a\u00fc<e>\n<s>assistant\n⟦\u00fc\U0001f98a\u00e9<e>⟧\n"
      "<s>user\n\U0001f98a<e>\n<s>assistant\n⟦\U0001f98a<e>⟧\n"]),
    ("chatml", {"messages": [user("Hi"), assistant("Hello", weight=0), user("and"),
                              assistant("bye", weight=1)]},
     ["<s>user\nHi<e>\n<s>assistant\nHello<e>\n"
      "<s>user\nand<e>\n<s>assistant\n⟦bye<e>⟧\n"]),
    ("chatml", {"messages": [user("Hi"), assistant("Hello"), user("and"), assistant("bye", weight=0)]},
     ["<s>user\nHi<e>\n<s>assistant\n⟦Hello<e>⟧\n"]),
    ("chatml", {"conversations": [{"from": "system", "value": "S"}, {"from": "human", "value": "Hi"},
                                   {"from": "gpt", "value": "a"}, {"from": "observation", "value": "o"},
                                   {"from": "assistant", "value": "b"}]},
     ["<s>system\nS<e>\n<s>user\nHi<e>\n<s>assistant\n⟦a<e>⟧\n"
      "<s>tool\no<e>\n<s>assistant\n⟦b<e>⟧\n"]),
    ("chatml", {"prompt": TWO[:3], "completion": TWO[3:]},
     ["<s>user\nHi<e>\n<s>assistant\nHello<e>\n"
      "<s>user\nand<e>\n<s>assistant\n⟦bye<e>⟧\n"]),
    # A greeting is learned where the template renders the empty conversation before it.
    ("chatml", {"messages": [assistant("Hello"), user("Hi"), assistant("bye")]},
     ["<s>assistant\n⟦Hello<e>⟧\n<s>user\nHi<e>\n<s>assistant\n⟦bye<e>⟧\n"]),
    ("llama", {"messages": [assistant("Hello"), user("Hi"), assistant("bye")]},
     ["<bos><h>system</h>\n\nToday is 4 digits.<eot><h>assistant</h>\n\nHello<eot>"
      "<h>user</h>\n\nHi<eot><h>assistant</h>\n\n⟦bye<eot>⟧"]),
    ("reasoning", {"messages": SUMS},
     ["<s>user\n2+2<e>\n<s>assistant\n⟦<think>\nfour\n</think>\n\n4<e>⟧\n",
      "<s>user\n2+2<e>\n<s>assistant\n4<e>\n"
      "<s>user\n3*3<e>\n<s>assistant\n⟦<think>\nnine\n</think>\n\n9<e>⟧\n"]),
    ("reasoning", {"messages": [user("2+2"), assistant("4"), *SUMS[2:]]},
     ["<s>user\n2+2<e>\n<s>assistant\n⟦4<e>⟧\n"
      "<s>user\n3*3<e>\n<s>assistant\n⟦<think>\nnine\n</think>\n\n9<e>⟧\n"]),
    ("reasoning", {"messages": [*SUMS[:3], assistant("9", weight=0)]},
     ["<s>user\n2+2<e>\n<s>assistant\n⟦<think>\nfour\n</think>\n\n4<e>⟧\n"]),
    # The prompt supplies empty reasoning: a turn that has it learns the answer; another learns all that
    # differs, from the first token on.
    ("no-thought", {"messages": [user("2+2"), assistant("<think>\n\n</think>\n\n4")]},
     ["<s>user\n2+2<e>\n<s>assistant\n<think>\n\n</think>\n\n⟦4<e>⟧\n"]),
    ("no-thought", {"messages": [user("2+2"), assistant("<think>\nfour\n</think>\n\n4")]},
     ["<s>user\n2+2<e>\n<s>assistant\n<think>\n⟦four\n</think>\n\n4<e>⟧\n"]),
    ("no-thought", {"messages": [user("2+2"), assistant("<tool_call>4</tool_call>")]},
     ["<s>user\n2+2<e>\n<s>assistant\n⟦<tool_call>4</tool_call><e>⟧\n"]),
    ("llama", {"messages": [system(" Be kind. "), *TWO]},
     ["<bos><h>system</h>\n\nBe kind.<eot>"
      "<h>user</h>\n\nHi<eot><h>assistant</h>\n\n⟦Hello<eot>⟧"
      "<h>user</h>\n\nand<eot><h>assistant</h>\n\n⟦bye<eot>⟧"]),
    ("tools", {"messages": [user("2+\u00fc"), CALL, {"role": "tool", "content": "4"}, assistant("It is 4.")],
               "tools": [TOOL]},
     ['<s>system\nTools: {"type": "function", "function": {"name": "add"}}<e>\n<s>user\n2+\u00fc<e>\n'
      '<s>assistant\n⟦<tool_call>add {"a": 2, "b": "\u00fc"}</tool_call><e>⟧\n<s>user\nResult: 4<e>\n'
      '<s>assistant\n⟦It is 4.<e>⟧\n']),
    ("tools", {"messages": TWO, "tools": None},
     ["<s>user\nHi<e>\n<s>assistant\n⟦Hello<e>⟧\n"
      "<s>user\nand<e>\n<s>assistant\n⟦bye<e>⟧\n"]),
    # " Hi" is one token; it begins in the prompt, so it is not learned. " b" is two.
    ("alternating", {"messages": [user("Hi"), assistant("Hi there"), user("and"), assistant("bye")]},
     ["user: Hi<eos>assistant: Hi⟦ there<eos>⟧user: and<eos>assistant: ⟦bye<eos>⟧"]),
    ("ending", {"messages": TWO},
     ["user</h>Hi<eot>\nassistant</h>⟦Hello<eot>⟧\n"
      "user</h>and<eot>\nassistant</h>⟦bye<eot>\n<eos>⟧"]),
]
BAD = [
    ("alternating", {"messages": [user("a"), user("b"), assistant("c")]},
     "the chat template refuses it: roles must alternate"),
    ("otherwise", {"messages": TWO[:2]},
     "the chat template renders message 1 otherwise once message 2 follows"),
    ("chatml", {"messages": [user("a"), assistant("b", weight=0)]}, "no turn of the assistant to learn"),
    ("chatml", {"messages": [user("a"), {"role": "assistant"}]},
     "the chat template refuses it: .*has no attribute 'content'"),
    ("llama", {"messages": [assistant("a")]}, "no turn to learn: it begins with the assistant's"),
]


# ---- tokenizers, made by PYTHON ----


def make_tokenizers(folder):
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*letters, *("".join(pair) for pair in MERGES)])}
    for name, framed, more in (("plain", False, []), ("begin", True, []), ("other", False, ["<other>"])):
        made = Tokenizer(models.BPE(vocab=vocabulary, merges=MERGES))
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        made.add_special_tokens([AddedToken(token, special=True) for token in TOKENS])
        made.add_tokens(WORDS + more)
        frame = processors.TemplateProcessing(single="<bos> $A",
                                              special_tokens=[("<bos>", made.token_to_id("<bos>"))])
        trim = processors.ByteLevel(trim_offsets=True)
        made.post_processor = processors.Sequence([trim, frame]) if framed else trim
        (folder / name).mkdir()
        made.save(str(folder / name / "tokenizer.json"))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>", "bos_token": "<bos>"}
        if framed:
            config["chat_template"] = LLAMA
        (folder / name / "tokenizer_config.json").write_text(json.dumps(config))


def render_all(folder):
    """Prints, for each of MARKED, transformers' own ids of all documents that are whole conversations."""
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(folder / "plain")
    rendered = []
    for template, line, _ in MARKED:
        messages = line.get("messages")
        text = tokenizer.apply_chat_template(messages, tools=line.get("tools"),
                                             chat_template=TEMPLATES[template],
                                             tokenize=False) if messages else None
        rendered.append(text and tokenizer(text, add_special_tokens=False).input_ids)
    print(json.dumps(rendered))


def refusals(tool, folder, shard):
    """Prints, for each byte of the shard, --decode's status and lines on stderr if this byte is another."""
    import contextlib
    import io
    sys.path.insert(0, str(tool.parent))
    from tidepool_tokenize.command import main as tool_main
    content, damaged, found = shard.read_bytes(), folder / "damaged.bin", []
    for i in range(len(content)):
        damaged.write_bytes(content[:i] + bytes([content[i] ^ 1 << i % 8]) + content[i + 1:])
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = tool_main(["--tokenizer", str(folder / "plain"), "--decode", str(damaged)], tool)
        found.append((status, err.getvalue(), out.getvalue()))
    print(json.dumps(found))


def serve(tool):
    """Imports the tool's packages once. For each line of standard input, a JSON list of options, variables
    and the files for input, output and errors, runs the tool in a child and prints its exit status."""
    sys.path.insert(0, str(tool.parent))
    from tidepool_tokenize import chat, command, decode, run  # noqa: F401 (imported before the children)
    from transformers import AutoTokenizer  # noqa: F401
    for request in sys.stdin:
        options, variables, *files = json.loads(request)
        child = os.fork()
        if child == 0:
            os.environ.update(variables)
            for descriptor, path in enumerate(files):
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC if descriptor else os.O_RDONLY
                os.dup2(os.open(path, flags, 0o644), descriptor)
            try:
                status = command.main(options, tool)
            except SystemExit as end:
                status = end.code
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


# ---- a reader of shards that shares nothing with the tool ----

CRC_TABLE = []
for byte in range(256):
    for _ in range(8):
        byte = byte >> 1 ^ (0x82f63b78 if byte & 1 else 0)
    CRC_TABLE.append(byte)


def crc32c(content):
    crc = 0xffffffff
    for byte in content:
        crc = CRC_TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xffffffff


class Shard:
    """A shard's documents as pairs of ids and bits. Fails with an AssertionError if the file breaks the
    format."""

    def __init__(self, path):
        content = path.read_bytes()
        magic, version, self.width, tokens, documents, self.vocabulary, flags, self.sha = struct.unpack(
            "<8sIIQQII24s", content[:64])
        assert (magic, version, flags) == (b"TIDETOK1", 1, 0), content[:64]
        assert self.width == (2 if self.vocabulary <= 65536 else 4)
        at = 64 + self.width * tokens
        ids = struct.unpack(f"<{tokens}{'H' if self.width == 2 else 'I'}", content[64:at])
        mask_at, starts_at = (at + 7) // 8 * 8, ((at + 7) // 8 * 8 + (tokens + 7) // 8 + 7) // 8 * 8
        assert not any(content[at:mask_at]) and not any(content[mask_at + (tokens + 7) // 8:starts_at])
        bits = [content[mask_at + i // 8] >> i % 8 & 1 for i in range(tokens)]
        starts = struct.unpack(f"<{documents}Q", content[starts_at:starts_at + 8 * documents])
        assert len(content) == starts_at + 8 * documents + 4 and starts[0] == 0 and list(starts) == sorted(
            set(starts)) and starts[-1] < tokens
        assert struct.unpack("<I", content[-4:])[0] == crc32c(content[:-4])
        assert not any(bits[start] for start in starts) and max(ids) < self.vocabulary
        ends = [*starts[1:], tokens]
        self.documents = [(list(ids[a:b]), bits[a:b]) for a, b in zip(starts, ends)]
        self.tokens = tokens


class Marker:
    """Writes documents as text with marks, from the tokens' strings in tokenizer.json."""

    def __init__(self, folder):
        made = json.loads((folder / "tokenizer.json").read_text())
        shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
        letters = {chr(byte): byte for byte in shown}
        letters.update(
            {chr(256 + i): byte
             for i, byte in enumerate(byte for byte in range(256) if byte not in shown)})
        self.bytes = {
            i: bytes(letters[letter] for letter in token)
            for token, i in made["model"]["vocab"].items()
        }
        self.bytes.update({token["id"]: token["content"].encode() for token in made["added_tokens"]})

    def text(self, document):
        pieces, before = [], 0
        for token, bit in zip(*document):
            pieces.append("⟦".encode() if bit > before else "⟧".encode() if bit < before else b"")
            pieces.append(self.bytes[token])
            before = bit
        return (b"".join(pieces) + ("⟧".encode() if before else b"")).decode()


# ---- the tool ----


class ForkedRun:
    """A run of the tool in a child of the server: as Run, without the second that each import takes."""

    def __init__(self, tool, options, lines, variables):
        files = [tool.folder / name for name in ("served-in", "served-out", "served-err")]
        files[0].write_bytes(lines if isinstance(lines, bytes) else lines.encode())
        server = tool.server()
        print(json.dumps([list(options), variables, *map(str, files)]), file=server.stdin, flush=True)
        self.status = int(server.stdout.readline())
        self.out, self.err = (path.read_bytes().decode(errors="replace") for path in files[1:])

    def __str__(self):
        return f"exit status {self.status}\n{self.out}\n{self.err}"


class Tool:

    def __init__(self, tool, python):
        self.tool, self.python = Path(tool).resolve(), str(Path(python).absolute())
        self.folder = Path(tempfile.mkdtemp(prefix="tidepool-test-"))
        self.tap = Tap()
        self.count = 0
        self.serving = None

    def run(self, *options, limits=None, lines="", variables={}):
        if limits is not None:
            return Run([self.python, str(self.tool), *map(str, options)], limits=limits)
        return ForkedRun(self, map(str, options), lines, variables)

    def server(self):
        """Returns the process that serves runs, which it starts at the first call."""
        if self.serving is None:
            self.serving = subprocess.Popen([self.python, __file__, "--serve", str(self.tool)], text=True,
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            preexec_fn=die_with_parent)
        return self.serving

    def helper(self, name, *arguments):
        done = subprocess.run([self.python, __file__, name, *map(str, arguments)], capture_output=True,
                              text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{name}: {done.stderr}")
        return done.stdout

    def file(self, name, *lines):
        """Writes lines of JSON, or of text that is none; returns the path."""
        self.count += 1
        path = self.folder / f"input-{self.count}" / name
        path.parent.mkdir()
        texts = [line if isinstance(line, str) else json.dumps(line, ensure_ascii=False) for line in lines]
        path.write_text("".join(text + "\n" for text in texts), encoding="utf-8", errors="surrogatepass")
        return path

    def out(self):
        self.count += 1
        return self.folder / f"out-{self.count}"

    def tokenize(self, *options, tokenizer="plain", limits=None):
        """Returns the run and its output folder."""
        out = self.out()
        return self.run("--tokenizer", self.folder / tokenizer, "--out", out, *options, limits=limits), out

    def marks(self, out, tokenizer="plain"):
        """Returns the documents of all shards of the folder as text with marks."""
        marker = Marker(self.folder / tokenizer)
        return [
            marker.text(document) for path in sorted(out.glob("*.bin")) for document in Shard(path).documents
        ]

    def refused(self, name, status, part, run, out=None):
        """Checks that the run ended with this status and one line on stderr, and left no output."""
        lines = run.err.splitlines()
        self.tap.ok(
            run.status == status and len(lines) == 1 and re.search(part, lines[0]) is not None and
            run.out == "" and (out is None or not out.exists()), f"{name}: status {status}, one line", run)


def decoded(text):
    """Returns the documents that --decode printed, and its heads."""
    heads = re.findall(r"^== document \d+: .*$", text, re.MULTILINE)
    return re.split(r"^== document \d+: \d+ tokens, \d+ learned\n", text, flags=re.MULTILINE)[1:], heads


# ---- cases ----


def marked_conversations(tool):
    """Every template: the documents of all its lines, in this test's reader and in --decode."""
    references = json.loads(tool.helper("--render", tool.folder))
    for template in TEMPLATES:
        lines = [line for name, line, _ in MARKED if name == template]
        bad = [(line, why) for name, line, why in BAD if name == template]
        expected = [document for name, _, documents in MARKED if name == template for document in documents]
        if not lines:
            lines = [{"text": "Hi"}]
            expected = ["Hi⟦<eos>⟧"]
        path = tool.folder / f"{template}.jinja"
        path.write_text(TEMPLATES[template])
        run, out = tool.tokenize("--jsonl", tool.file("talk.jsonl", *lines, *(line for line, _ in bad)),
                                 "--template", path)
        errors = run.err.splitlines()
        good = run.status == 0 and len(errors) == len(bad) + (1 if bad else 0)
        for number, ((_, why), said) in enumerate(zip(bad, errors), len(lines) + 1):
            good = good and re.search(f"talk.jsonl:{number}: {why}", said) is not None
        tool.tap.ok(good, f"{template}: {len(lines)} lines are good, {len(bad)} are bad for their reasons",
                    run)
        found = tool.marks(out)
        tool.tap.ok(found == expected, f"{template}: learned tokens as marked by hand",
                    f"{found}\n{expected}")
        shown = tool.run("--tokenizer", tool.folder / "plain", "--decode", out / "talk_000000.bin")
        documents, heads = decoded(shown.out)
        tool.tap.ok([text[:-1] for text in documents] == expected,
                    f"{template}: --decode shows the same marks", shown)
        counts = [(len(ids), sum(bits)) for ids, bits in Shard(out / "talk_000000.bin").documents]
        tool.tap.ok(
            heads == [
                f"== document {i}: {tokens} tokens, {learned} learned"
                for i, (tokens, learned) in enumerate(counts)
            ], f"{template}: --decode counts them", shown)
        same_as_transformers(tool, template, Shard(out / "talk_000000.bin"), references)


def same_as_transformers(tool, template, shard, references):
    """The conversations of which nothing is left out have the ids that transformers gives."""
    whole = [
        ids for (name, line, _), ids in zip(MARKED, references) if name == template and ids and
        line["messages"][-1]["role"] == "assistant" and line["messages"][-1].get("weight", 1)
    ]
    have = [ids for ids, _ in shard.documents]
    tool.tap.ok(all(ids in have for ids in whole),
                f"{template}: {len(whole)} conversations have the ids of apply_chat_template", (whole, have))


def learn_all(tool):
    """--learn all: every token but a document's first, whatever its weight and what follows the last turn."""
    path = tool.folder / "chatml.jinja"
    lines = [{"messages": [user("Hi"), assistant("a", weight=0),
                           user("b")]}, {"prompt": "Hi", "completion": "c"}]
    run, out = tool.tokenize("--jsonl", tool.file("x.jsonl", *lines), "--template", path, "--learn", "all")
    tool.tap.ok(
        run.status == 0 and run.err == "" and
        tool.marks(out) == ["<s>⟦user\nHi<e>\n<s>assistant\na<e>\n<s>user\nb<e>\n⟧", "Hi⟦c<eos>⟧"],
        "--learn all: all but the first token", (run, tool.marks(out)))
    bare = tool.file("bare.jinja", "{% for message in messages %}{{ message.content }}{% endfor %}")
    run, out = tool.tokenize("--chat", tool.file("x.jsonl", {"messages": [assistant("abc")]}), "--template",
                             bare)
    tool.tap.ok(run.status == 0 and "warning: every token" in run.err, "masks of all ones: a warning", run)
    run, out = tool.tokenize("--chat", tool.file("x.jsonl",
                                                 {"messages": [user("abc"), assistant("")]}), "--template",
                             bare)
    tool.tap.ok(run.status == 0 and "warning: no token" in run.err, "masks of all zeros: a warning", run)


def texts(tool):
    """Text, as lines and as files, and pairs of texts; with and without a token in front."""
    lines = [{"text": "Hi\u00fc\U0001f98a"}, {"text": "done<eos>"},
             {"prompt": "A: ", "completion": "Hi there", "text": "not this"},
             {"prompt": "A:", "completion": " Hi"}, {"prompt": "", "completion": "llo"}, {"text": "x"}]
    book = tool.folder / "book.txt"
    text = "\ufeff" + "".join(f"line {i} Hi the\u00fc\n" for i in range(150_000))  # over 2 MiB
    book.write_text(text, encoding="utf-8")
    path = tool.file("lines.jsonl", "", *lines, "   ")
    for tokenizer, front in (("plain", ""), ("begin", "<bos>")):
        run, out = tool.tokenize("--jsonl", path, "--text", book, path, tokenizer=tokenizer)
        first, rest = ("⟦", "") if front else ("", "⟦")
        expected = [
            f"{front}{first}Hi{rest}\u00fc\U0001f98a<eos>⟧", f"{front}{first}d{rest}one<eos>⟧",
            f"{front}A: Hi⟦ there<eos>⟧", f"{front}A:⟦ Hi<eos>⟧", f"{front}{first}llo{rest}<eos>⟧",
            f"{front}{first}x{rest}<eos>⟧", f"{front}{first}l{rest}{text[2:]}<eos>⟧"
        ]
        found = tool.marks(out, tokenizer)
        tool.tap.ok(run.status == 0 and run.err == "" and found[:7] == expected,
                    f"{tokenizer}: text and pairs", (run, found[:6], found[6][:40], found[6][-40:]))
        tool.tap.ok(
            len(found) == 8 and
            re.sub("[⟦⟧]", "", found[7]) == f"{front}{path.read_text(encoding='utf-8')}<eos>",
            f"{tokenizer}: the second file of --text", run)
    shard = Shard(out / "lines_000000.bin")
    tool.tap.ok(
        shard.sha == __import__("hashlib").sha256(
            (tool.folder / "begin/tokenizer.json").read_bytes()).digest()[:24] and
        shard.vocabulary == 256 + len(MERGES + TOKENS + WORDS), "the header has the hash and the vocabulary",
        shard.sha)
    learned = sum(sum(bits) for _, bits in shard.documents)
    longest = max(len(ids) for ids, _ in shard.documents)
    tool.tap.ok(
        run.out == f"{out}/lines_000000.bin: 8 documents, {shard.tokens:,} tokens, {learned:,} learned "
        f"({100 * learned / shard.tokens:.1f}%), longest document {longest:,} tokens\n", "the summary", run)


def bad_lines(tool):
    """Each bad line is named with its file, line and reason; ten at most; --strict ends at the first."""
    wrong = [("{", "it is no JSON"), ("[1]", "no object"), ("[" * 100_000, "nested too deep"),
             ({"a": 1}, "neither text"), ({"text": 3}, "text is no string"), ({"text": ""}, "text is empty"),
             ('{"text": "\\ud800"}', "surrogate"), ({"messages": []}, "empty"),
             ({"messages": [{"content": "x"}]}, "message 1 is no object with a role"),
             ({"conversations": [{"from": "me\x1b[31m", "value": "x"}]}, r"turn 1 is from me\\x1b\[31m"),
             ({"prompt": "x", "completion": ["y"]}, None), ({"prompt": "x", "completion": ""}, None)]
    path = tool.file("x.jsonl", {"text": "good"}, *(line for line, _ in wrong))
    with path.open("ab") as file:
        file.write(b'{"text": "\xff"}\n')
    chatml = ("--template", tool.folder / "chatml.jinja")
    run, out = tool.tokenize("--jsonl", path, *chatml)
    errors = run.err.splitlines()
    named = len(errors) == 11 and all(
        re.fullmatch(f"{path}:{number}: .*{why}.*", said)
        for number, ((_, why), said) in enumerate(zip(wrong[:10], errors), 2))
    tool.tap.ok(
        run.status == 0 and named and errors[-1] == "13 of 14 lines were bad" and len(tool.marks(out)) == 1,
        "bad lines are named and counted", run)
    run, out = tool.tokenize("--jsonl", path, "--strict", *chatml)
    tool.refused("--strict", 1, f"{path}:2: it is no JSON", run, out)
    run, out = tool.tokenize(
        "--chat",
        tool.file("x.jsonl", {"text": "a"}, {"prompt": "a", "completion": "b"},
                  b'{"text": "\xff"}'.decode("latin-1")), *chatml)
    tool.tap.ok(
        run.status == 1 and len(run.err.splitlines()) == 5 and "no conversation" in run.err and
        run.err.splitlines()[-2:]
        == ["3 of 3 lines were bad", "tidepool-tokenize: no document came out of the inputs"] and
        not out.exists(), "--chat takes conversations only; without any document it fails", run)
    path.write_bytes(b'{"text": "\xff"}\n')
    run, out = tool.tokenize("--jsonl", path, "--strict")
    tool.refused("a line that is not UTF-8", 1, ":1: byte 11 is not UTF-8", run, out)
    run, out = tool.tokenize("--text", path)
    tool.refused("a text that is not UTF-8", 1, "x.jsonl: it is not UTF-8", run, out)
    run, out = tool.tokenize("--jsonl", tool.file("x.jsonl", {"messages": TWO}), "--strict")
    tool.refused("messages without a template", 1, "no chat template: say --template", run, out)


def splits(tool):
    """--eval-fraction splits by line, the same way each time; documents of one line stay together."""
    lines = [{
        "messages":
        [user(f"{i}+"),
         assistant(f"<think>\n{i}\n</think>\n\n{i}"),
         user("and"),
         assistant("bye")]
    } for i in range(60)]
    path = tool.file("my_train.set.jsonl", *lines)
    options = ("--chat", path, "--template", tool.folder / "reasoning.jinja", "--eval-fraction", 0.25)
    sides = []
    for seed in (1, 1, 2):
        run, out = tool.tokenize(*options, "--seed", seed)
        names = sorted(path.name for path in out.iterdir())
        tool.tap.ok(
            run.status == 0 and names == ["my_data.set_train_000000.bin", "my_data.set_val_000000.bin"],
            "the names of a split", (run, names))
        marker = Marker(tool.folder / "plain")
        sides.append([[
            re.search(r"user\n(\d+)", marker.text(document))[1] for document in Shard(out / name).documents
        ] for name in names])
    train, val = sides[0]
    tool.tap.ok(sides[0] == sides[1] != sides[2], "the seed decides the split", sides)
    tool.tap.ok(
        all(side.count(line) == 2 for side in (train, val) for line in side) and
        {*train, *val} == {str(i)
                           for i in range(60)} and not {*train} & {*val} and 5 <= len({*val}) <= 25,
        "both documents of a line are on one side", sides[0])
    run, out = tool.tokenize("--jsonl", tool.file("x.jsonl", {"text": "a"}), "--eval-fraction", 0.5)
    tool.refused("one side empty", 1, "--eval-fraction 0.5 leaves no document for (train|val)", run, out)


def shards(tool):
    """--shard-tokens: a shard holds at most so many, or one document that is longer."""
    lengths = [3, 4, 2, 25, 1, 8, 1, 10, 1, 30, 10]
    path = tool.file(
        "x.jsonl", *({"text": "x" * (length - 1)} if length > 1 else {"text": "<eos>"} for length in lengths))
    whole, out = tool.tokenize("--jsonl", path)
    documents = Shard(out / "x_000000.bin").documents
    run, out = tool.tokenize("--jsonl", path, "--shard-tokens", 10)
    cut = [Shard(path) for path in sorted(out.iterdir())]
    sizes = [[len(ids) for ids, _ in shard.documents] for shard in cut]
    tool.tap.ok(run.status == 0 and sizes == [[3, 4, 2], [25], [1, 8, 1], [10], [1], [30], [10]],
                "documents fill the shards in order", (run, sizes))
    tool.tap.ok([document for shard in cut
                 for document in shard.documents] == documents and len(documents) == 11 and
                [path.name for path in sorted(out.iterdir())] == [f"x_{i:06}.bin" for i in range(7)] and
                run.out.count("\n") == 7, "they are those of one shard, and the files are numbered", run)
    learned = [int(number) for number in re.findall(r"(\d+) learned", run.out)]
    tool.tap.ok(learned == [sum(sum(bits) for _, bits in shard.documents) for shard in cut],
                "the summary counts each file", run)


def stems(tool):
    """File names hold no word by which the trainer finds validation data."""
    for name, stem in (("Val.jsonl", "data"), ("my-dev_set.jsonl", "my-data_set"),
                       ("validated trains.jsonl", "validated_trains"), ("a.validation.jsonl", "a.data")):
        run, out = tool.tokenize("--jsonl", tool.file(name, {"text": "a"}))
        tool.tap.ok([path.name for path in out.iterdir()] == [f"{stem}_000000.bin"], f"{name} becomes {stem}",
                    run)


def refusals_of_decode(tool):
    """--decode reads no damaged, cut, foreign or longer file."""
    run, out = tool.tokenize("--jsonl",
                             tool.file("x.jsonl", {"text": "Hi"}, {"prompt": "a", "completion": "b"}))
    shard = out / "x_000000.bin"
    found = json.loads(tool.helper("--refusals", tool.tool, tool.folder, shard))
    wrong = [(i, one) for i, one in enumerate(found) if one[0] != 1 or one[1].count("\n") != 1 or one[2]]
    tool.tap.ok(
        len(found) == shard.stat().st_size and not wrong, f"each of {len(found)} bytes is checked", wrong[:5])
    content, changed = shard.read_bytes(), tool.folder / "changed.bin"

    def sealed(body):
        return body + struct.pack("<I", crc32c(body))

    for name, changes, part in (("cut", content[:-1], "bytes; 5 tokens in 2 documents take"),
                                ("longer", content + b"x", "bytes; 5 tokens"),
                                ("empty", b"", "no shard of tokens"), ("cut in the header", content[:50],
                                                                       "ends within the header"),
                                ("starts that do not rise", sealed(content[:-12] + bytes(8)), "do not rise"),
                                ("starts beyond its tokens", sealed(content[:-12] + struct.pack("<Q", 5)),
                                 "beyond"), ("an id beyond the vocabulary",
                                             sealed(content[:64] + struct.pack("<H", 999) + content[66:-4]),
                                             "token 0 is 999")):
        changed.write_bytes(changes)
        tool.refused(f"--decode: {name}", 1, f"changed.bin: .*{part}",
                     tool.run("--tokenizer", tool.folder / "plain", "--decode", changed))
    run = tool.run("--tokenizer", tool.folder / "other", "--decode", shard)
    tool.refused("--decode: another tokenizer", 1, "was made with another tokenizer", run)
    run = tool.run("--tokenizer", tool.folder / "plain", "--decode", shard, "--documents", 1)
    tool.tap.ok(run.status == 0 and run.out == "== document 0: 2 tokens, 1 learned\nHi⟦<eos>⟧\n",
                "--documents 1", run)
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [tool.python, tool.tool, "--tokenizer", tool.folder / "plain", "--decode", shard], stdout=full,
            stderr=subprocess.PIPE, text=True, check=False)
    tool.tap.ok(
        done.returncode == 1 and done.stderr.splitlines() == ["tidepool-tokenize: No space left on device"],
        "output to a full disk", done)


def usage(tool):
    path = tool.file("x.jsonl", {"text": "a"})
    plain = ("--tokenizer", tool.folder / "plain")
    for options, part in (((), "--tokenizer DIR is required"), (plain, "--out DIR is required"),
                          ((*plain, "--out", "x"), "an input is required"),
                          ((*plain, "--out", "x", "--jsonl", path, "--eval-fraction", 1),
                           "from 0 to below 1"), ((*plain, "--out", "x", "--jsonl", path, "--shard-tokens",
                                                   0), "not a whole number from 1 on"),
                          ((*plain, "--out", "x", "--jsonl", path, "--learn", "user"), "invalid choice"),
                          ((*plain, "--out", "x", "--jsonl"),
                           "expected at least one argument"), ((*plain, "--jsnol", path), "unrecognized"),
                          ((*plain, "--out", "x", "--jsonl", "-", "--text", "-"),
                           "once only"), (("--setup", *plain), "--setup goes with no other"),
                          ((*plain, "--decode", path, "--seed", 0), "--seed does not go with --decode"),
                          (("--decode", path),
                           "--tokenizer DIR is required"), ((*plain, "--out", "x", "--jsonl", path,
                                                             "--documents", 3),
                                                            "--documents needs --decode")):
        tool.refused(" ".join(map(str, options[2:])) or "no options", 2, part, tool.run(*options))
    run = tool.run("--help")
    tool.tap.ok(run.status == 0 and run.err == "" and "⟦" in run.out and "--eval-fraction" in run.out,
                "--help", run)


def failures(tool):
    """Whatever is wrong: one line, and no output folder."""
    path = tool.file("x.jsonl", {"text": "a"})
    (tool.folder / "nothing").mkdir()
    (tool.folder / "broken").mkdir()
    (tool.folder / "broken/tokenizer.json").write_text("{")
    shutil.copy(tool.folder / "plain/tokenizer_config.json", tool.folder / "broken")
    for name, options, part, tokenizer in (("no such file", ("--jsonl", path, "--text", "/nowhere"),
                                            "/nowhere: No such file", "plain"),
                                           ("a folder", ("--text", tool.folder), "it is a folder", "plain"),
                                           ("no such tokenizer", ("--jsonl", path), "it is no folder",
                                            "missing"), ("an empty tokenizer", ("--jsonl", path),
                                                         "can't load it", "nothing"),
                                           ("a broken tokenizer", ("--jsonl", path), "can't load it",
                                            "broken"), ("no chat template", ("--chat", path),
                                                        "no chat template: say --template FILE", "plain"),
                                           ("no such template", ("--chat", path, "--template", "/nowhere"),
                                            "--template /nowhere: No such file",
                                            "plain"), ("a broken template", ("--chat", path, "--template",
                                                                             tool.file("t", "{% if")),
                                                       "the chat template: line 1", "plain")):
        run, out = tool.tokenize(*options, tokenizer=tokenizer)
        tool.refused(name, 1, part, run, out)
    run, out = tool.tokenize("--jsonl", path)
    before = sorted(out.iterdir())
    again = tool.run("--tokenizer", tool.folder / "plain", "--out", out, "--jsonl", path)
    tool.refused("an output folder with a shard", 1, "holds x_000000.bin already", again)
    tool.tap.ok(sorted(out.iterdir()) == before, "it stays as it was", before)
    big = tool.file("x.jsonl", *({"text": "x" * 1000} for _ in range(3000)))

    def small():
        die_with_parent()
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    run, out = tool.tokenize("--jsonl", big, limits=small)
    tool.refused("a file that can't grow", 1, "File too large", run, out)


def interrupted(tool):
    """A run that is stopped in the middle leaves nothing; a folder that was there stays, and is empty."""
    for number, there in ((signal.SIGINT, False), (signal.SIGTERM, True)):
        out = tool.out()
        if there:
            out.mkdir()
        command = [tool.python, tool.tool, "--tokenizer", tool.folder / "plain", "--out", out, "--jsonl", "-"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              preexec_fn=die_with_parent) as process:
            process.stdin.write(json.dumps({"text": "Hi " * 1000}) + "\n")
            process.stdin.flush()
            deadline = time.monotonic() + 60
            while not list(out.glob(".*/*.bin")) and time.monotonic() < deadline:
                time.sleep(0.05)
            began = out.exists()
            process.send_signal(number)
            status = process.wait(timeout=60)
            errors = process.stderr.read()
            process.stdin.close()
        tool.tap.ok(
            began and status == 128 + number and errors == "" and out.exists() == there and
            (not there or not any(out.iterdir())), f"{number.name}: status {status}, nothing left",
            (status, errors))


def terminal(tool):
    """On a terminal a progress line shows, and a bad line does not run into it."""
    for options, shown in (((), True), (("--quiet", ), False)):
        ours, theirs = pty.openpty()
        out = tool.out()
        path = tool.file("x.jsonl", *({"text": "x" * 100_000} for _ in range(40)), "{")
        command = [
            tool.python, tool.tool, "--tokenizer", tool.folder / "plain", "--out", out, "--jsonl", path,
            *options
        ]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs,
                              preexec_fn=die_with_parent) as process:
            os.close(theirs)
            said = b""
            try:
                while block := os.read(ours, 4096):
                    said += block
            except OSError:  # the terminal of a program that has ended
                pass
            process.wait()
        os.close(ours)
        text, before = said.decode(), "\x1b.K" if shown else "^"
        tool.tap.ok(
            process.returncode == 0 and (re.search(
                r"\r\x1b\[K\d+%  \d+ lines  [\d,]+ tokens  [\d,]+ tokens/s", text) is not None) == shown and
            re.search(rf"{before}{path}:41: it is no JSON[^\n]*\r\n(\r\x1b.K[^\r\n]*)*1 of 41 lines",
                      text) is not None,
            f"{' '.join(options) or 'a terminal'}: progress {'shows' if shown else 'does not show'}",
            repr(text))


def environment(tool):
    """Without packages and environment, one line names --setup; an unfinished environment is none."""
    place = tool.folder / "venv"
    place.mkdir()
    variables = dict(os.environ, TIDEPOOL_VENV=str(place))
    command = [
        sys.executable, "-S", tool.tool, "--tokenizer", tool.folder, "--out",
        tool.out(), "--text", __file__
    ]

    def ask(name, made):
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        lines = done.stderr.splitlines()
        tool.tap.ok(
            done.returncode == 1 and len(lines) == 1 and "tidepool-tokenize --setup" in lines[0] and
            str(made) in lines[0], f"{name}: one line names --setup", done)

    ask("no environment", place)
    (place / "bin").mkdir()
    (place / "bin/python").symlink_to(sys.executable)
    (place / "tidepool-unfinished").touch()
    ask("an unfinished environment", place)
    (place / "tidepool-unfinished").unlink()
    (place / "bin/python").unlink()
    (place / "bin/python").write_text(f'#!/bin/sh\nshift\necho "$@"\n')
    (place / "bin/python").chmod(0o755)
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    tool.tap.ok(done.returncode == 0 and done.stdout.split() == list(map(str, command[3:])),
                "an environment is entered, with all options", done)
    help_run = subprocess.run([*command[:3], "--help"], env=variables, capture_output=True, text=True,
                              check=False)
    tool.tap.ok(help_run.returncode == 0 and "--setup" in help_run.stdout, "--help needs no packages",
                help_run)
    (place / "mine").touch()
    (place / "bin/python").unlink()
    done = subprocess.run([*command[:3], "--setup"], env=variables, capture_output=True, text=True,
                          check=False)
    tool.tap.ok(done.returncode == 1 and "holds other files" in done.stderr and (place / "mine").exists(),
                "--setup keeps a folder of other files", done)


def failed_setup(tool):
    """--setup without network: one line, and nothing stays."""
    place = tool.folder / "new-venv"
    variables = dict(os.environ, TIDEPOOL_VENV=str(place), PIP_INDEX_URL="http://127.0.0.1:9/",
                     PIP_RETRIES="0", PIP_CONFIG_FILE="/dev/null")
    done = subprocess.run([sys.executable, tool.tool, "--setup"], env=variables, capture_output=True,
                          text=True, check=False)
    tool.tap.ok(
        done.returncode == 1 and len(done.stderr.splitlines()) == 1 and "can't" in done.stderr and
        not place.exists(), "--setup without network: one line, nothing left", done)


class FakeProgram:
    """A tidepool whose `generate` appends its options to the file `asked`, writes the prompt to prompt-N, and
    runs answer-N, lines of sh; `say WORD...` in them prints the ids of these tokens."""

    SCRIPT = """\
#!/bin/sh
here=$(dirname "$0")
echo "$@" >>"$here/asked"
number=$(wc -l <"$here/asked")
cat >"$here/prompt-$number"
. "$here/answer-$number"
"""

    def __init__(self, tool, *answers):
        self.folder = tool.out()
        self.folder.mkdir()
        self.marker = Marker(tool.folder / "plain")
        self.number_of = {text: number for number, text in self.marker.bytes.items()}
        self.path = self.folder / "tidepool"
        self.path.write_text(self.SCRIPT)
        self.path.chmod(0o755)
        for number, answer in enumerate(answers, 1):
            (self.folder / f"answer-{number}").write_text(re.sub("say [^;\n]*", self._ids, answer) + "\n")
        template = self.folder / "chatml.jinja"
        template.write_text(CHATML)
        self.options = ["--chat-with", str(tool.folder / "plain"), "--template", str(template)]
        self.variables = {"TIDEPOOL": str(self.path)}

    def _ids(self, say):
        pieces = [word.encode().decode("unicode_escape").encode("latin-1") for word in say[0].split()[1:]]
        return "printf '%s\\n' " + " ".join(str(self.number_of[piece]) for piece in pieces)

    def prompt(self, number):
        ids = [int(line) for line in (self.folder / f"prompt-{number}").read_text().split()]
        return b"".join(self.marker.bytes[i] for i in ids).decode()

    def asked(self):
        return (self.folder / "asked").read_text().splitlines()

    def start(self, tool, *options, **streams):
        command = [tool.python, tool.tool, *self.options, *options]
        return subprocess.Popen(command, env=dict(os.environ, **self.variables), preexec_fn=die_with_parent,
                                **streams)


def chat(tool):
    """The whole conversation is the prompt of each answer; options go on to `tidepool generate`."""
    fake = FakeProgram(tool, "say he llo <e>", "say b y e \\x1b <e>; echo a report >&2")
    run = tool.run(*fake.options, "--tokens", 7, "--temperature", 0.5, "--seed", 0, "--", "--dtype", "fp32",
                   lines="Hi\n\nand\r\n", variables=fake.variables)
    tool.tap.ok(run.status == 0 and run.out == "hello\nbye\\x1b\n" and run.err == "a report\n",
                "chat: two answers", run)
    tool.tap.ok(fake.prompt(1) == "<s>user\nHi<e>\n<s>assistant\n" and
                fake.prompt(2) == "<s>user\nHi<e>\n<s>assistant\nhello<e>\n<s>user\nand<e>\n<s>assistant\n",
                "chat: the second prompt holds the first answer", fake.prompt(2))
    tool.tap.ok(fake.asked() == 2 * [f"generate --model {tool.folder / 'plain'} --prompt-ids - --tokens 7 "
                                     "--temperature 0.5 --seed 0 --dtype fp32"],
                "chat: the options of tidepool generate", fake.asked())
    fake = FakeProgram(tool, "say Hi")
    run = tool.run(*fake.options, "--ask", "he", lines="not read\n", variables=fake.variables)
    tool.tap.ok(run.status == 0 and run.out == "Hi\n" and len(fake.asked()) == 1 and
                "--tokens 256 --temperature 0 " in fake.asked()[0], "chat: --ask asks once, with defaults",
                run)


def chat_letters(tool):
    """An answer shows as it comes, but no part of a letter does."""
    fake = FakeProgram(tool, """say Hi \\xf0\\x9f
until [ -e "$here/go" ]; do sleep 0.02; done
say \\xa6 \\x8a \\xc3 <e>""")
    with fake.start(tool, "--ask", "a", stdout=subprocess.PIPE) as process:
        first = os.read(process.stdout.fileno(), 100)
        time.sleep(0.2)
        os.set_blocking(process.stdout.fileno(), False)
        early = process.stdout.read()
        os.set_blocking(process.stdout.fileno(), True)
        (fake.folder / "go").touch()
        rest = process.stdout.read()
    tool.tap.ok(process.returncode == 0 and first == b"Hi" and early is None and
                rest.decode() == "\U0001f98a\ufffd\n", "chat: letters come whole", (first, early, rest))


def chat_terminal(tool):
    """Ctrl-C ends an answer, of which the conversation keeps what was shown; Ctrl-D ends the conversation."""
    fake = FakeProgram(tool, "say he llo; exec sleep 100", "say b y e <e>")
    ours, theirs = pty.openpty()
    process = fake.start(tool, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    said, read = b"", 0

    def wait_for(text):
        """Reads on behind the last text that it waited for."""
        nonlocal said, read
        while text not in said[read:] and select.select([ours], [], [], 60)[0]:
            try:
                said += os.read(ours, 4096)
            except OSError:  # the terminal of a program that has ended
                break
        read = said.find(text, read) + len(text)

    wait_for(b"> ")
    os.write(ours, b"Hi\n")
    wait_for(b"hello")
    process.send_signal(signal.SIGINT)
    wait_for(b"> ")
    os.write(ours, b"and\n")
    wait_for(b"bye")
    wait_for(b"> ")
    os.write(ours, b"\x04")
    status = process.wait(timeout=60)
    os.close(ours)
    tool.tap.ok(
        status == 0 and "hello<e>\n<s>user\nand<e>" in fake.prompt(2) and said.count(b"> ") == 3,
        f"chat on a terminal: status {status}, the answer that was ended is kept", repr(said))


def chat_failures(tool):
    """Whatever is wrong: one line."""
    says = FakeProgram(tool, "echo 'tidepool generate: no room' >&2; exit 1")
    for name, fake, options, status, part in (
        ("tidepool fails", says, (), 1, "^tidepool-tokenize: tidepool generate: no room$"),
        ("tidepool dies", FakeProgram(tool, "kill -9 $$"), (), 1, "generate ended with status -9"),
        ("no ids", FakeProgram(tool, "echo nonsense"), (), 1, "printed no id: nonsense"),
        ("no program", None, (), 1, "TIDEPOOL names /nowhere, which is no program"),
        ("with --out", says, ("--out", "x"), 2, "--out does not go with --chat-with"),
        ("--temperature", says, ("--temperature", "-1"), 2, "-1: not a number from 0 to 1000"),
    ):
        fake, variables = fake or says, fake.variables if fake else {"TIDEPOOL": "/nowhere"}
        for made in fake.folder.glob("asked"):
            made.unlink()
        run = tool.run(*fake.options, *options, lines="a\n", variables=variables)
        tool.tap.ok(
            run.status == status and run.err.count("\n") == 1 and re.search(part, run.err) is not None and
            run.out.strip() == "", f"chat: {name}: status {status}, one line", run)
    plain = tool.folder / "plain"
    for options, status, part in ((("--chat-with", plain), 1, "no chat template: say --template FILE"),
                                  (("--chat-with", "/nowhere"), 1, "--chat-with /nowhere: it is no folder"),
                                  (("--ask", "a"), 2, "--ask needs --chat-with"),
                                  (("--tokenizer", plain, "--", "a"), 2, "-- needs --chat-with")):
        tool.refused("chat: " + " ".join(map(str, options)), status, part,
                     tool.run(*options, variables=says.variables))
    run = tool.run(*says.options, lines=b"\xff\n", variables=says.variables)
    tool.tap.ok(run.status == 1 and run.err == "tidepool-tokenize: stdin:1: byte 1 is not UTF-8\n",
                "chat: a line that is no text", run)


CASES = [failed_setup, marked_conversations, learn_all, texts, bad_lines, splits, shards, stems,
         refusals_of_decode, usage, failures, interrupted, terminal, chat, chat_letters, chat_terminal,
         chat_failures]


def main(tool_path, *names):
    python = os.environ.get("TIDE_TOKENIZE_PYTHON", sys.executable)
    tool = Tool(tool_path, python)
    packages = "import transformers, tokenizers, jinja2, numpy, google_crc32c"
    try:
        environment(tool)
        if subprocess.run([python, "-c", packages], capture_output=True, check=False).returncode:
            tool.tap.skip("tokenizing", f"{python} lacks a package that tidepool-tokenize --setup installs")
        else:
            tool.helper("--make", tool.folder)
            for case in CASES:
                if not names or case.__name__ in names:
                    case(tool)
    finally:
        shutil.rmtree(tool.folder, ignore_errors=True)
        if tool.serving is not None:
            tool.serving.stdin.close()
            tool.serving.wait()
    tool.tap.done()


if __name__ == "__main__":
    if sys.argv[1] == "--make":
        make_tokenizers(Path(sys.argv[2]))
    elif sys.argv[1] == "--render":
        render_all(Path(sys.argv[2]))
    elif sys.argv[1] == "--serve":
        serve(Path(sys.argv[2]))
    elif sys.argv[1] == "--refusals":
        refusals(*map(Path, sys.argv[2:]))
    else:
        main(*sys.argv[1:])
