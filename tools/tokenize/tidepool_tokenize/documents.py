"""Drafts of documents out of the lines of the inputs: a text, and the spans of it that the model learns.

A line of JSON is, by its keys, one of

    {"messages": [{"role": ..., "content": ...}, ...], "tools": [...]}    a conversation
    {"conversations": [{"from": ..., "value": ...}, ...]}                 a conversation in ShareGPT's form
    {"prompt": ..., "completion": ...}      two texts, or two lists of messages that are one conversation
    {"text": ...}                           a text

in this order, since lines with messages often carry other keys. Texts get the tokenizer's special tokens and
the end token (`framed`); a conversation has those that its template writes.
"""
import json
from dataclasses import dataclass, field

from .faults import BadLine

ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system",
         "tool": "tool", "function": "tool", "observation": "tool"}


@dataclass
class Span:
    """Learned letters of a text. A token that begins before `begin` is the prompt's and not learned, unless
    `takes_first`: then the model had to write this token in place of the prompt's."""
    begin: int
    end: int
    takes_first: bool = False


@dataclass
class Draft:
    text: str
    spans: list = field(default_factory=list)
    framed: bool = False
    is_conversation: bool = False

    def check(self):
        """Refuses halves of surrogate pairs, which JSON can spell and a tokenizer can't take."""
        try:
            self.text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise BadLine("half of a surrogate pair is no letter") from error


class Documents:
    """Makes drafts of lines. `conversations` renders messages; None if there is no chat template."""

    def __init__(self, conversations, learns_all):
        self.conversations = conversations
        self.learns_all = learns_all

    def of_line(self, line, kind):
        """Returns the drafts of a line of --jsonl or --chat, or raises BadLine."""
        value = _parsed(line)
        if "messages" in value:
            drafts = self._conversation(value["messages"], value)
        elif "conversations" in value:
            drafts = self._conversation(_translated(value["conversations"]), value)
        elif "prompt" in value and "completion" in value and _are_lists(value):
            messages = _messages(value["prompt"]) + _messages(value["completion"])
            drafts = self._conversation(messages, value, len(value["prompt"]))
        elif kind == "chat":
            raise BadLine("no conversation: it has neither messages nor conversations")
        elif "prompt" in value and "completion" in value:
            drafts = [self._pair(value["prompt"], value["completion"])]
        elif "text" in value:
            drafts = [_text(value["text"])]
        else:
            raise BadLine("it has neither text, messages, conversations, nor prompt and completion")
        for draft in drafts:
            draft.check()
        return drafts

    def _conversation(self, messages, value, first=0):
        if self.conversations is None:
            raise BadLine("the tokenizer has no chat template: say --template FILE")
        tools = value.get("tools")
        if tools is not None and not (isinstance(tools, list) and
                                      all(isinstance(tool, dict) for tool in tools)):
            raise BadLine("tools is no list of objects")
        messages = _messages(messages)
        if self.learns_all:
            return [self.conversations.learned_whole(messages, tools)]
        return self.conversations.learned_turns(messages, tools, first)

    def _pair(self, prompt, completion):
        if not isinstance(prompt, str) or not isinstance(completion, str):
            raise BadLine("prompt and completion are neither two texts nor two lists of messages")
        if not completion:
            raise BadLine("its completion is empty")
        begin = 0 if self.learns_all else len(prompt)
        return Draft(prompt + completion, [Span(begin, len(prompt) + len(completion))], framed=True)


def _parsed(line):
    try:
        value = json.loads(line)
    except RecursionError as error:
        raise BadLine("its JSON is nested too deep") from error
    except ValueError as error:
        raise BadLine(f"it is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadLine("its JSON is no object")
    return value


def _text(text):
    if not isinstance(text, str):
        raise BadLine("text is no string")
    if not text:
        raise BadLine("its text is empty")
    return Draft(text, [Span(0, len(text))], framed=True)


def _are_lists(value):
    return isinstance(value["prompt"], list) and isinstance(value["completion"], list)


def _messages(messages):
    """Returns the messages if their form is right. What a message holds besides is the template's affair."""
    if not isinstance(messages, list) or not messages:
        raise BadLine("its messages are no list, or an empty one")
    for number, message in enumerate(messages, 1):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadLine(f"message {number} is no object with a role")
        if message.get("weight", 1) not in (0, 1):
            raise BadLine(f"message {number}: its weight is neither 0 nor 1")
    return messages


def _translated(turns):
    """Returns ShareGPT's turns as messages."""
    if not isinstance(turns, list):
        raise BadLine("conversations is no list")
    messages = []
    for number, turn in enumerate(turns, 1):
        names = ("from", "value")
        if not isinstance(turn, dict) or not all(isinstance(turn.get(name), str) for name in names):
            raise BadLine(f"turn {number} is no object with from and value")
        if turn["from"] not in ROLES:
            raise BadLine(f"turn {number} is from {turn['from']}, which is none of {', '.join(ROLES)}")
        weight = {"weight": turn["weight"]} if "weight" in turn else {}
        messages.append({"role": ROLES[turn["from"]], "content": turn["value"], **weight})
    return messages
