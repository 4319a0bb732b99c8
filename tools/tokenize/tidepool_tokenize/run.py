"""A run that tokenizes: inputs to drafts, drafts in batches to tokens, tokens to the output.

A batch is large enough that the tokenizer's threads have work, and small enough that memory stays constant.
"""
from contextlib import suppress
from itertools import islice

import numpy as np

from . import inputs as reading
from .conversation import Conversations
from .documents import Documents
from .faults import BadLine, Failure
from .output import Output, stem_of
from .progress import Progress
from .template import no_template, template_of
from .tokenizer import Tokenizer

BATCH_LETTERS = 1 << 20
PARTS = 4  # of plain text at once


class Run:

    def __init__(self, options):
        self.options = options
        for one in options.inputs:
            one.check()
        total = reading.total_size(options.inputs)
        self.tokenizer = Tokenizer(options.tokenizer)
        self.documents = Documents(self._conversations(), options.learn == "all")
        self.output = Output(options.out, stem_of(options.inputs[0].name()), options.eval_fraction,
                             options.seed, options.shard_tokens,
                             (self.tokenizer.vocabulary, self.tokenizer.sha256))
        self.progress = Progress(not options.quiet, total)
        self.bytes_read = self.line = 0  # of all inputs; the line counts empty and bad ones, too
        self.batch, self.batch_letters = [], 0
        self.could_learn = self.did_learn = 0  # tokens of conversations

    def _conversations(self):
        """Returns the renderer of conversations; None without a chat template, if no input needs one for
        sure."""
        template = template_of(self.tokenizer, self.options.template)
        if template is None:
            if any(one.kind == "chat" for one in self.options.inputs):
                raise Failure(no_template(self.tokenizer.folder))
            return None
        return Conversations(template, self.tokenizer.special_tokens, self.tokenizer.end_token)

    def go(self):
        """Writes all files, or none. Returns (path, writer) of each."""
        try:
            for one in self.options.inputs:
                if one.kind == "text":
                    self._text(one)
                else:
                    self._lines(one)
            self._flush()
            self.progress.end()
            return self.output.publish()
        except BaseException:
            self.progress.clear()
            self.output.discard()
            raise

    def _lines(self, one):
        for number, line in reading.lines(one):
            self.bytes_read += len(line)
            self.line += 1
            if not line.strip():
                continue
            self.progress.lines += 1
            try:
                drafts = self.documents.of_line(reading.decoded(line), one.kind)
            except BadLine as error:
                self.progress.bad_line(f"{one.name()}:{number}", error, self.options.strict)
                continue
            self.batch += [(self.line, draft) for draft in drafts]
            self.batch_letters += sum(len(draft.text) for draft in drafts)
            if self.batch_letters >= BATCH_LETTERS:
                self._flush()

    def _flush(self):
        """Tokenizes and writes the drafts that wait."""
        batch, self.batch, self.batch_letters = self.batch, [], 0
        encoded = self.tokenizer.encode([draft for _, draft in batch]) if batch else []
        for (line, draft), (ids, learned) in zip(batch, encoded):
            side = self.output.side(line)
            side.append(ids, learned)
            side.end_document()
            if draft.is_conversation and len(ids) > 1:
                self.could_learn += len(ids) - 1
                self.did_learn += int(np.count_nonzero(learned[1:]))
        self.progress.show(self.bytes_read, self.output.tokens())

    def _text(self, one):
        """Writes a file of plain text as one document."""
        self._flush()
        self.line += 1
        self.progress.lines += 1
        side, before, last = self.output.side(self.line), self.bytes_read, None
        parts = reading.parts(one)
        while group := list(islice(parts, PARTS)):
            if last is None:
                self._append(side, self.tokenizer.front)
            for ids in self.tokenizer.encode_parts([text for text, _ in group]):
                side.append(ids, np.ones(len(ids), bool))
                last = ids[-1] if len(ids) else last
            self.bytes_read = before + group[-1][1]
            self.progress.show(self.bytes_read, self.output.tokens())
        if last is None:
            self.progress.bad_line(one.name(), "it is empty", self.options.strict)
            return
        back = self.tokenizer.back
        self._append(side, [] if back == [last] == [self.tokenizer.model.eos_token_id] else back)
        side.end_document()

    @staticmethod
    def _append(side, ids):
        side.append(np.array(ids, np.uint32), np.ones(len(ids), bool))

    def warning(self):
        """Returns a line about masks that are probably wrong, or None."""
        with suppress(ZeroDivisionError):
            share = self.did_learn / self.could_learn
            if share == 0:
                return "no token of the conversations is learned: look with --decode"
            if share == 1 and self.options.learn != "all":
                return "every token of the conversations is learned (masks of all ones): look with --decode"
        return None


def print_summary(files):
    for path, shard in files:
        share = 100 * shard.learned / shard.tokens
        print(f"{path}: {shard.documents:,} documents, {shard.tokens:,} tokens, {shard.learned:,} learned "
              f"({share:.1f}%), longest document {shard.longest:,} tokens")
