"""The command line."""
import argparse
import sys

from .inputs import Input

PROGRAM = "tidepool-tokenize"
DESCRIPTION = """\
Turns text and conversations into shards of tokens for `tidepool train --data`, and talks with a model.

  tidepool-tokenize --setup
  tidepool-tokenize --tokenizer DIR --out DIR (--text FILE... | --jsonl FILE... | --chat FILE...) [options]
  tidepool-tokenize --tokenizer DIR --decode FILE [--documents N]
  tidepool-tokenize --chat-with DIR [--ask TEXT] [options] [-- options of tidepool generate]
"""
EPILOG = """\
A line of JSONL is one of
  {"text": "..."}                                              a document; all of it is learned
  {"messages": [{"role": "user", "content": "..."}, ...]}      a conversation, also with "tools"; a message of
                                                               the assistant with "weight": 0 is not learned
  {"conversations": [{"from": "human", "value": "..."}, ...]}  a conversation
  {"prompt": "...", "completion": "..."}                       or two lists of messages; completion is learned
Of a conversation the assistant's turns are learned, each with its end token. A turn that the chat template
renders otherwise once others follow it becomes a document of its own. What follows the last learned turn is
left out. A first message of the assistant is not learned if the template can't render the prompt for it.

--decode prints a line for each document and its text, special tokens included; learned tokens stand between
\u27e6 and \u27e7, control characters as \\x1b. An input FILE may be - for standard input.

--chat-with reads questions from standard input, one a line, and prints the answers as tidepool makes them.
Ctrl-C ends an answer, Ctrl-D the conversation. TIDEPOOL names the program where it is neither beside this one
nor in PATH. Exit status: 0, 1 if it failed, 2 for wrong options.
"""


class Parser(argparse.ArgumentParser):

    def error(self, message):
        print(f"{PROGRAM}: {message} (see --help)", file=sys.stderr)
        sys.exit(2)


class AddInputs(argparse.Action):
    """Keeps the inputs of all kinds in one list, in the order of the command line."""

    def __call__(self, parser, namespace, values, option_string=None):
        kind = option_string.lstrip("-")
        namespace.inputs = [*namespace.inputs, *(Input(kind, value) for value in values)]


def whole(least):

    def number(text):
        if not text.isdecimal() or not least <= int(text) < 1 << 63:
            raise argparse.ArgumentTypeError(f"{text}: not a whole number from {least} on")
        return int(text)

    return number


def fraction(text):
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text}: not a number from 0 to below 1")
    return value


def temperature(text):
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value <= 1000:
        raise argparse.ArgumentTypeError(f"{text}: not a number from 0 to 1000")
    return value


def parser():
    made = Parser(prog=PROGRAM, description=DESCRIPTION, epilog=EPILOG, usage=argparse.SUPPRESS,
                  allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = made.add_argument
    add(
        "--setup", action="store_true",
        help="install the Python packages that it needs into an environment of its own "
        "(~/.local/share/tidepool/venv, or the folder that TIDEPOOL_VENV names)")
    add("--tokenizer", metavar="DIR", help="folder of the model whose tokenizer and chat template to use")
    add("--out", metavar="DIR", help="folder to write shards to; it may hold no *.bin")
    add("--text", metavar="FILE", nargs="+", action=AddInputs, help="plain text; each file is a document")
    add("--jsonl", metavar="FILE", nargs="+", action=AddInputs, help="lines of JSON, of any kind below")
    add("--chat", metavar="FILE", nargs="+", action=AddInputs,
        help="lines of JSON, all of them conversations")
    add("--template", metavar="FILE", help="chat template (Jinja) in place of the tokenizer's")
    add("--learn", choices=["assistant", "all"],
        help="what of a conversation, or of prompt and completion, is learned "
        "(default: assistant)")
    add("--eval-fraction", metavar="F", type=fraction,
        help="share of lines that go to files named val (default: 0)")
    add("--seed", metavar="N", type=whole(0),
        help="draws the lines of --eval-fraction, or of a chat the tokens (default: 1)")
    add("--shard-tokens", metavar="N", type=whole(1), help="most tokens of a file; a document is never cut "
        "(default: 100000000)")
    add("--strict", action="store_true", help="end at the first bad line and write nothing")
    add("--quiet", action="store_true", help="no progress line")
    add("--decode", metavar="FILE", help="print this shard as text")
    add("--documents", metavar="N", type=whole(1), help="print the first N documents only")
    add("--chat-with", metavar="DIR", help="talk with the model in this folder")
    add("--ask", metavar="TEXT", help="ask this alone")
    add("--tokens", metavar="N", type=whole(1), help="most tokens of an answer (default: 256)")
    add("--temperature", metavar="T", type=temperature,
        help="0: always the likeliest token; above: draw one, the more freely the higher (default: 0)")
    made.set_defaults(inputs=[])
    return made


DEFAULTS = {"learn": "assistant", "eval_fraction": 0.0, "seed": 1, "shard_tokens": 100_000_000, "tokens": 256,
            "temperature": 0.0}
TOKENIZING = ("out", "template", "learn", "eval_fraction", "seed", "shard_tokens", "strict", "quiet",
              "inputs")
CHATTING = ("ask", "tokens", "temperature", "generate_options")
WITH_CHAT = ("chat_with", "template", "seed", *CHATTING)


def parsed(arguments):
    """Returns the options with their defaults; wrong ones end the program."""
    made = parser()
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    options = made.parse_args(arguments[:cut])
    options.generate_options = arguments[cut + 1:]
    given = [name for name, value in vars(options).items()
             if not (value is None or value is False or value == [])]  # a 0 was given
    _check(made, options, given)
    for name, value in DEFAULTS.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def _check(made, options, given):
    if options.setup:
        if given != ["setup"]:
            made.error("--setup goes with no other option")
        return
    if options.chat_with is not None:
        wrong = next((name for name in given if name not in WITH_CHAT), None)
        if wrong is not None:
            made.error(f"{_shown(wrong)} does not go with --chat-with")
        return
    wrong = next((name for name in CHATTING if name in given), None)
    if wrong is not None:
        made.error(f"{_shown(wrong)} needs --chat-with")
    if options.tokenizer is None:
        made.error("--tokenizer DIR is required")
    if options.decode is not None:
        wrong = next((name for name in TOKENIZING if name in given), None)
        if wrong is not None:
            made.error(f"{_shown(wrong)} does not go with --decode")
        return
    if options.documents is not None:
        made.error("--documents needs --decode")
    if options.out is None:
        made.error("--out DIR is required")
    if not options.inputs:
        made.error("an input is required: --text, --jsonl or --chat")
    if sum(one.path == "-" for one in options.inputs) > 1:
        made.error("standard input can be read once only")


def _shown(name):
    """Returns an option as the user wrote it."""
    return {"inputs": "an input", "generate_options": "--"}.get(name, "--" + name.replace("_", "-"))
