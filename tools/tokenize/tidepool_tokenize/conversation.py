"""The learned turns of a conversation, found by rendering it up to each of the assistant's turns.

For turn i of messages m there are two renderings: A of m[:i] with the words that ask for a turn (the
generation prompt), and B of m[:i+1]. The model learns B from the end of A on:

    A  <|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n
    B  <|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\nHello<|im_end|>\\n
                                                              [ learned  ]

up to the turn's end token; white space behind it is the template's. The whole conversation W ends with the
last learned turn. Where W begins with B, the turn is learned in W. Some templates write earlier turns
otherwise than the last (Qwen3 drops their reasoning); such a turn becomes a document of its own, B, which
learns that turn alone, since the model must write it as it stands at the end.

Some templates (Phi-3) end each rendering that has no generation prompt with the end token, which stands
behind no earlier turn. So B without it may also be the begin of W.
"""
from os.path import commonprefix

from .documents import Draft, Span
from .faults import BadLine
from .template import messages_for


class Conversations:

    def __init__(self, template, special_tokens, end_token):
        """`end_token` is the tokenizer's, or None."""
        self.template = template
        self.special_tokens = tuple(special_tokens)
        self.end_token = end_token or ""

    def learned_whole(self, messages, tools):
        text = self.template.render(messages_for(messages), tools, False)
        return Draft(text, [Span(0, len(text))], is_conversation=True)

    def learned_turns(self, messages, tools, first):
        """Returns drafts of the conversation; it learns the assistant's turns from message `first` on, but
        for those with weight 0."""
        turns = [
            i for i, message in enumerate(messages)
            if i >= first and message["role"] == "assistant" and message.get("weight", 1)
        ]
        if not turns:
            raise BadLine("no turn of the assistant to learn")
        prepared = messages_for(messages)[:turns[-1] + 1]
        whole = self.template.render(prepared, tools, False)
        spans, drafts = [], []
        for turn in turns:
            text = whole if turn == turns[-1] else self.template.render(prepared[:turn + 1], tools, False)
            span = self._span(prepared, tools, turn, text)
            if span is None:
                continue
            kept = next(
                (begin for begin in (text, text.removesuffix(self.end_token)) if whole.startswith(begin)),
                None)
            if kept is None:
                drafts.append(Draft(text, [span], is_conversation=True))
            else:
                span.end = self._end(kept)
                spans.append(span)
        if spans:
            drafts.append(Draft(whole, spans, is_conversation=True))
        if not drafts:
            raise BadLine(
                "no turn to learn: it begins with the assistant's, and the template can't prompt for that")
        return drafts

    def _span(self, messages, tools, turn, text):
        """Returns the learned span of the text, which ends with this turn; None for a first message that the
        template can't prompt for."""
        try:
            prompt = self.template.render(messages[:turn], tools, True)
        except BadLine:
            if turn == 0:
                return None
            raise
        if text.startswith(prompt):
            return Span(len(prompt), self._end(text))
        before = self.template.render(messages[:turn], tools, False).removesuffix(self.end_token)
        if not text.startswith(before):
            raise BadLine(
                f"the chat template renders message {turn} otherwise once message {turn + 1} follows")
        # A prompt that the turn does not go on from, such as "<think>\n" before a turn without reasoning.
        return Span(len(commonprefix([prompt, text])), self._end(text), takes_first=True)

    def _end(self, text):
        stripped = text.rstrip()
        return len(stripped) if stripped.endswith(self.special_tokens) else len(text)
