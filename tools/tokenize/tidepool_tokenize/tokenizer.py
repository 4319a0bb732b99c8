"""The tokenizer of a model folder, and how drafts become tokens with a bit each that says whether it is
learned.

Post-processors of byte-level tokenizers cut white space off the offsets of tokens, so that a token " Hi" that
begins in the prompt would seem to lie behind it. Therefore drafts are encoded without a post-processor; the
special tokens that it would put around a text are found once, at the begin, and added here.
"""
import hashlib
import os
from pathlib import Path

import numpy as np

from .faults import Failure, reason

HASH_BYTES = 24


class Tokenizer:

    def __init__(self, folder, option="--tokenizer"):
        """`option` is the one that named the folder."""
        if not Path(folder).is_dir():
            raise Failure(f"{option} {folder}: it is no folder")
        self.folder = folder
        self.model = _load(folder, option)
        self.sha256 = _hash(Path(folder) / "tokenizer.json")
        self.backend = self.model.backend_tokenizer
        self.backend.no_truncation()
        self.backend.no_padding()
        self.front, self.back = self._frame()
        self.backend.post_processor = None
        highest = max(self.model.get_vocab().values(), default=-1)
        self.vocabulary = max(len(self.model), highest + 1)  # ids may have gaps
        self.end_token = self.model.eos_token
        special = [token.content for token in self.model.added_tokens_decoder.values() if token.special]
        self.special_tokens = sorted({*special, *self.model.all_special_tokens})

    def _frame(self):
        """Returns the ids that the tokenizer puts before and behind a text; the end token is always
        behind."""
        bare = self.backend.encode("a", add_special_tokens=False).ids
        full = self.backend.encode("a", add_special_tokens=True).ids
        at = next((i for i in range(len(full)) if full[i:i + len(bare)] == bare), 0)
        front, back = full[:at], full[at + len(bare):]
        end = self.model.eos_token_id
        return front, back if end is None or back[-1:] == [end] else back + [end]

    def encode(self, drafts):
        """Returns ids and learned bits of each draft, as arrays."""
        encodings = self.backend.encode_batch([draft.text for draft in drafts], add_special_tokens=False)
        return [self._finished(draft, encoding) for draft, encoding in zip(drafts, encodings)]

    def _finished(self, draft, encoding):
        ids, learned = encoding.ids, _learned(draft, encoding)
        if not draft.framed:
            return np.array(ids, np.uint32), learned
        back = self.back
        if ids and back == [self.model.eos_token_id] and ids[-1] == back[0]:
            back = []
        front_learned = np.full(len(self.front), draft.spans[0].begin == 0)
        learned = np.concatenate([front_learned, learned, np.ones(len(back), bool)])
        return np.array(self.front + ids + back, np.uint32), learned

    def encode_parts(self, texts):
        """Returns the ids of parts of one text, without special tokens around them."""
        encodings = self.backend.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, np.uint32) for encoding in encodings]

    def ids(self, text):
        """Returns the ids of a rendered conversation."""
        return self.backend.encode(text, add_special_tokens=False).ids

    def spoken(self, ids):
        """Returns the text of an answer, without the special tokens in it."""
        return self.model.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def decode(self, ids):
        return self.model.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def _learned(draft, encoding):
    if any(span.begin == 0 and span.end == len(draft.text) for span in draft.spans):
        return np.ones(len(encoding.ids), bool)
    offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
    learned = np.zeros(len(offsets), bool)
    for span in draft.spans:
        begins = offsets[:, 1] > span.begin if span.takes_first else offsets[:, 0] >= span.begin
        learned |= begins & (offsets[:, 1] <= span.end)
    return learned


def _load(folder, option):
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error",
                      TRANSFORMERS_NO_ADVISORY_WARNINGS="1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    try:
        from transformers import AutoTokenizer  # takes a second: after the checks of options
        model = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # OSError, ValueError, KeyError, ImportError and others
        raise Failure(f"{option} {folder}: transformers can't load it: {reason(error)}") from error
    if not model.is_fast:
        raise Failure(f"{option} {folder}: it has no fast tokenizer (tokenizer.json)")
    return model


def _hash(path):
    try:
        return hashlib.sha256(path.read_bytes()).digest()[:HASH_BYTES]
    except FileNotFoundError:
        return bytes(HASH_BYTES)
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}") from error
