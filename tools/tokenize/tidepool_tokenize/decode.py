"""--decode: prints a shard as text, with marks around the learned tokens."""
import numpy as np

from .faults import Failure
from .shard_reader import ShardReader

OPEN, CLOSE = "⟦", "⟧"
# Control characters of a text could change the terminal.
SHOWN = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def runs(learned):
    """Yields begin, end and bit of each longest run of equal bits."""
    edges = [0, *(np.flatnonzero(learned[1:] != learned[:-1]) + 1).tolist(), len(learned)]
    return ((begin, end, bool(learned[begin])) for begin, end in zip(edges, edges[1:]))


def text_of(tokenizer, ids, learned):
    pieces = []
    for begin, end, is_learned in runs(learned):
        text = tokenizer.decode(ids[begin:end].tolist()).translate(SHOWN)
        pieces.append(f"{OPEN}{text}{CLOSE}" if is_learned else text)
    return "".join(pieces)


def check_tokenizer(shard, tokenizer):
    """Refuses a tokenizer whose tokenizer.json is another than the shard's."""
    if any(shard.sha256) and any(tokenizer.sha256) and shard.sha256 != tokenizer.sha256:
        raise Failure(f"{shard.path}: it was made with another tokenizer than {tokenizer.folder}: the hashes "
                      "of tokenizer.json differ")
    if shard.vocabulary > tokenizer.vocabulary:
        raise Failure(f"{shard.path}: its vocabulary has {shard.vocabulary} tokens, that of "
                      f"{tokenizer.folder} has {tokenizer.vocabulary}")


def decode(path, load_tokenizer, documents):
    """Prints the first documents (all for None). The shard is checked before the tokenizer is loaded."""
    shard = ShardReader(path)
    tokenizer = load_tokenizer()
    check_tokenizer(shard, tokenizer)
    count = shard.documents if documents is None else min(documents, shard.documents)
    for number in range(count):
        ids, learned = shard.document(number)
        print(f"== document {number}: {len(ids)} tokens, {np.count_nonzero(learned)} learned")
        print(text_of(tokenizer, ids, learned))
