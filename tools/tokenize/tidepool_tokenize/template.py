"""The chat template: renders messages to text as transformers' apply_chat_template does.

It compiles the template once and passes it the same names; transformers' own function copies every message at
each call. One difference is meant: strftime_now tells the time at which the run began, so that two renderings
of one conversation never differ in it.
"""
import json
from datetime import datetime

import jinja2
from jinja2 import ext, sandbox

from .faults import BadLine, Failure, reason

REASONING = ("reasoning_content", "thinking", "reasoning")


class Generation(ext.Extension):
    """The tag with which templates mark the assistant's text; its content is rendered as it stands."""
    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration", ), drop_needle=True)


def _refuse(message):
    raise jinja2.exceptions.TemplateError(message)


def _json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def _compiled(source, began):
    environment = sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                        extensions=[Generation, ext.loopcontrols])
    environment.filters["tojson"] = _json
    environment.globals.update(raise_exception=_refuse, strftime_now=began.strftime)
    try:
        return environment.from_string(source)
    except jinja2.exceptions.TemplateError as error:
        line = f" line {error.lineno}:" if getattr(error, "lineno", None) else ""
        raise Failure(f"the chat template:{line} {reason(error)}") from error


def no_template(folder):
    return f"the tokenizer in {folder} has no chat template: say --template FILE"


def template_of(tokenizer, file):
    """Returns the template that the file holds, or without one (None) the tokenizer's; None if it has
    none."""
    source = None
    if file is not None:
        try:
            with open(file, encoding="utf-8") as opened:
                source = opened.read()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or reason(error)
            raise Failure(f"--template {file}: {why}") from error
    elif not tokenizer.model.chat_template:
        return None
    try:
        return Template(tokenizer.model, source)
    except ValueError as error:
        raise Failure(f"the tokenizer in {tokenizer.folder}: {reason(error)}") from error


class Template:

    def __init__(self, tokenizer, source=None):
        """`source` takes the place of the tokenizer's template. Raises Failure if there is neither."""
        self.tokenizer = tokenizer
        self.source = source
        self.began = datetime.now()
        self.compiled = {}
        self.names = {
            name: value
            for name, value in tokenizer.special_tokens_map.items() if isinstance(value, str)
        }
        self._of(None)

    def _of(self, tools):
        """Returns the compiled template; some tokenizers have one for conversations with tools."""
        if (tools is None) not in self.compiled:
            source = self.tokenizer.get_chat_template(self.source, tools)
            self.compiled[tools is None] = _compiled(source, self.began)
        return self.compiled[tools is None]

    def render(self, messages, tools, prompts):
        """Returns the text of messages that `messages_for` has prepared; with `prompts` it ends with the
        words that ask for the assistant's turn."""
        try:
            return self._of(tools).render(messages=messages, tools=tools, add_generation_prompt=prompts,
                                          **self.names)
        except Exception as error:  # a template fails in any way on messages that it does not expect
            raise BadLine(f"the chat template refuses it: {reason(error)}") from error


def messages_for(messages):
    """Returns the messages as transformers passes them to templates: without members that are null, and with
    reasoning under each of its names. The weight is this program's."""
    prepared = []
    for message in messages:
        message = {name: value for name, value in message.items() if value is not None and name != "weight"}
        reasoning = next((message[name] for name in REASONING if name in message), None)
        if reasoning is not None:
            message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
        prepared.append(message)
    return prepared
