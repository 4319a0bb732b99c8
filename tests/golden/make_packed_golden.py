#!/usr/bin/python3
"""Makes packed.golden: results of Hugging Face's transformers for documents that tidepool trains packed.

    python3 -m venv somewhere && somewhere/bin/pip install torch transformers
    somewhere/bin/python make_packed_golden.py packed.golden

The file was made with transformers 5.24 and torch 2.15 on a CPU. Others may give other last digits.

A case is a tiny model (CASES), with the values that make_family_golden.py gives it, and a batch of 8
sequences into which documents are packed by a list (SHORT, LONG). A document of n tokens takes n - 1 rows of
its sequence: its inputs are all its tokens but the last, its targets all but the first. A mask says which of
its tokens are learned; the first one never is, because no token predicts it. The rows behind a sequence's
last document are padding.

The truth knows no packing. transformers runs every document alone in float64, unpatched, with labels of -100
for the tokens that are not learned. The loss is the sum of all documents' losses, divided by the number of
learned tokens of the whole batch. The gradients are those of this loss.

The script then checks three things:

- transformers' own loss, from labels and num_items_in_batch, is the same. (transformers computes it in
  float32 from the logits.)
- transformers gives the same loss and gradients for the packed arrays as the file contains them, with a mask
  and position_ids that follow from the starts.
- The mean over documents of each document's mean, and the mean over sequences of each sequence's mean, are
  other numbers, so that a comparison with the file finds a mean of means.

packed.golden, little endian:
    8 bytes   "TIDEPACK"
    uint32    version 1, sequences of a batch, cases
    and of each case
    32 bytes  its name, padded with zeros
    uint32    bytes of its config.json, tokens of a sequence, tensors, learned tokens of the batch
    the text of config.json
    float64   loss
    int32     [sequences, tokens of a sequence] inputs; 0 in padding
    int32     [sequences, tokens of a sequence] targets; -1 where not learned and in padding
    int32     [sequences, tokens of a sequence] starts: the position in its sequence at which a row's document
              begins; in padding the row's own position
    and of each tensor, in transformers' order; item n of the hash gives the values of tensor n
    64 bytes  its name in files, padded with zeros
    uint32    elements
    float32   [elements] gradient (an embedding's with the tied head's)
"""

import json
import struct
import sys

import make_family_golden as family
import numpy as np
import torch
import torch.nn.functional as F

SEQUENCES = family.SEQUENCES
DOCUMENTS_ITEM = 2000  # item DOCUMENTS_ITEM + d of the hash gives the tokens of document d
IGNORED = -100  # a label that transformers does not learn


# What each mask learns of n tokens: a range of their numbers.
MASKS = {
    "all": lambda n: range(n),
    "none": lambda n: range(0),
    "one": lambda n: range(n // 2, n // 2 + 1),
    "last": lambda n: range(n - 1, n),
    "every second": lambda n: range(0, n, 2),
    "answer": lambda n: range(2 * n // 3, n),
}

# (tokens of a document, its mask), by sequence. Sequences are filled by one document, by many and by none; a
# micro-batch of one or two sequences may have all, few or none of its rows learned.
SHORT_LENGTH = 24
SHORT = (
    ((25, "all"),),
    ((10, "every second"), (2, "all"), (14, "one")),
    ((7, "none"), (19, "answer")),
    ((25, "none"),),
    (),
    ((3, "last"), (4, "all"), (2, "none"), (6, "every second")),
    ((2, "all"), (2, "none"), (2, "last"), (2, "all"), (2, "all"), (20, "answer")),
    ((17, "one"),),
)

# The CPU's attention works in tiles of 64 rows, its head in tiles of 256: documents cross their borders and
# begin at them.
LONG_LENGTH = 150
LONG = (
    ((151, "every second"),),
    ((65, "one"), (65, "all"), (23, "none")),
    (),
    ((40, "none"), (50, "last"), (3, "all"), (2, "one"), (50, "answer")),
    ((64, "answer"), (2, "all"), (70, "none")),
    ((100, "none"),),
    ((2, "all"), (150, "all")),
    ((129, "last"), (22, "every second")),
)

# (name, tokens of a sequence, packed documents, config.json). A document of one token more than a sequence
# must fit into the context, because transformers gets all its tokens.
CASES = (
    ("llama", SHORT_LENGTH, SHORT,
     family.llama(2, 24, 4, 2, 34, 91, tie_word_embeddings=True, rope_theta=10000.0, rope_scaling=None,
                  torch_dtype="float32")),
    ("llama-long", LONG_LENGTH, LONG,
     family.llama(2, 21, 3, 1, 26, 67, 160, head_dim=8, tie_word_embeddings=False,
                  rope_parameters={"rope_type": "llama3", "rope_theta": 500.0, "factor": 6.0,
                                   "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                   "original_max_position_embeddings": 48}, dtype="float32")),
    ("qwen3", SHORT_LENGTH, SHORT,
     family.qwen3(2, 20, 4, 2, 30, 67, head_dim=12, tie_word_embeddings=False,
                  rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, dtype="float32")),
    # Learned positions, which begin anew in each document. The context is longer than a sequence.
    ("gpt2", SHORT_LENGTH, SHORT,
     {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new",
      "n_layer": 2, "n_embd": 20, "n_head": 2, "n_positions": 27, "n_ctx": 27, "vocab_size": 67,
      "layer_norm_epsilon": 1e-5, "bos_token_id": None, "eos_token_id": None}),
    ("mistral", SHORT_LENGTH, SHORT,
     family.mistral(2, 24, 4, 2, 34, 67, head_dim=10, tie_word_embeddings=True,
                    rope_parameters={"rope_type": "default", "rope_theta": 300.0}, dtype="float32")),
    # With a padding token, 0, which documents contain, too: its embedding gets a gradient only from the head.
    ("qwen2-padding", SHORT_LENGTH, SHORT,
     family.qwen2(2, 24, 8, 1, 34, 31, head_dim=6, tie_word_embeddings=True, rope_theta=10000.0,
                  pad_token_id=0, torch_dtype="float32")),
)


class Document:
    """A document's tokens, and its labels as transformers takes them: a token, or IGNORED."""

    def __init__(self, item, vocabulary, tokens, mask):
        self.tokens = (family.number(DOCUMENTS_ITEM + item, tokens) % vocabulary).astype(np.int64)
        self.labels = np.full(tokens, IGNORED)
        for i in MASKS[mask](tokens):
            self.labels[i] = self.tokens[i]

    def learned(self):
        return int((self.labels[1:] != IGNORED).sum())


def make_documents(packed, vocabulary):
    """The documents, by sequence."""
    sizes = [(sequence, *about) for sequence, documents in enumerate(packed) for about in documents]
    made = [[] for _ in packed]
    for item, (sequence, tokens, mask) in enumerate(sizes):
        made[sequence].append(Document(item, vocabulary, tokens, mask))
    return made


def pack(sequences, seq_len):
    """Inputs, targets and starts as tidepool takes them."""
    shape = (len(sequences), seq_len)
    inputs, targets = np.zeros(shape, np.int32), np.full(shape, -1, np.int32)
    starts = np.tile(np.arange(seq_len, dtype=np.int32), (len(sequences), 1))
    for s, documents in enumerate(sequences):
        begin = 0
        for document in documents:
            end = begin + len(document.tokens) - 1
            assert end <= seq_len
            inputs[s, begin:end] = document.tokens[:-1]
            targets[s, begin:end] = np.where(document.labels[1:] == IGNORED, -1, document.labels[1:])
            starts[s, begin:end] = begin
            begin = end
    return inputs, targets, starts


def take_gradients(params):
    taken = {name: param.grad.detach().numpy().copy() for name, param in params.items()}
    for param in params.values():
        param.grad = None
    return taken


def run_alone(model, params, documents, learned):
    """The sum of each document's losses, the loss, the gradients, and transformers' own loss."""
    sums, own = [], 0
    for document in documents:
        tokens, labels = torch.tensor(document.tokens)[None], torch.tensor(document.labels)[None]
        logits = model(input_ids=tokens, use_cache=False).logits
        assert logits.dtype == torch.float64
        loss = F.cross_entropy(logits[0, :-1], labels[0, 1:], reduction="sum", ignore_index=IGNORED)
        (loss / learned).backward()
        sums.append(loss.item())
        with torch.no_grad():
            own += model(input_ids=tokens, labels=labels, use_cache=False,
                         num_items_in_batch=torch.tensor(learned)).loss.item()
    return sums, sum(sums) / learned, take_gradients(params), own


def run_packed(model, params, inputs, targets, starts, learned):
    """The loss and the gradients of the packed arrays."""
    rows = torch.arange(inputs.shape[1])
    begin = torch.tensor(starts).long()
    hidden = (rows[None, None, :] > rows[None, :, None]) | (rows[None, None, :] < begin[:, :, None])
    mask = torch.zeros(hidden.shape, dtype=torch.float64).masked_fill(hidden, float("-inf"))[:, None]
    logits = model(input_ids=torch.tensor(inputs).long(), attention_mask=mask,
                   position_ids=rows[None] - begin, use_cache=False).logits
    loss = F.cross_entropy(logits.flatten(0, 1), torch.tensor(targets).long().flatten(), reduction="sum",
                           ignore_index=-1) / learned
    loss.backward()
    return loss.item(), take_gradients(params)


def mean_of_means(sums, counts):
    means = [s / count for s, count in zip(sums, counts) if count > 0]
    return sum(means) / len(means)


def largest_difference(gradients, others):
    """The largest relative difference of a tensor's gradient, by norms."""
    return max(np.linalg.norm(others[name] - gradient) / np.linalg.norm(gradient)
               for name, gradient in gradients.items())


def write_case(file, name, seq_len, packed, fields):
    text = json.dumps(fields, indent=2)
    model, params = family.make_model(text)
    sequences = make_documents(packed, fields["vocab_size"])
    documents = [document for sequence in sequences for document in sequence]
    inputs, targets, starts = pack(sequences, seq_len)
    learned = int((targets >= 0).sum())
    padding = fields.get("pad_token_id")
    assert len(sequences) == SEQUENCES and learned == sum(document.learned() for document in documents)
    assert padding is None or any((document.tokens[:-1] == padding).any() for document in documents)

    sums, loss, gradients, own = run_alone(model, params, documents, learned)
    again, again_gradients = run_packed(model, params, inputs, targets, starts, learned)
    apart = abs(own / loss - 1), abs(again / loss - 1), largest_difference(gradients, again_gradients)
    assert apart[0] < 1e-6 and max(apart[1:]) < 1e-9, (name, apart)

    rest = iter(sums)
    sums_of_sequences = [sum(next(rest) for _ in sequence) for sequence in sequences]
    means = (mean_of_means(sums, [document.learned() for document in documents]),
             mean_of_means(sums_of_sequences, (targets >= 0).sum(1)))
    assert min(abs(mean / loss - 1) for mean in means) > 1e-3, (name, loss, means)

    file.write(struct.pack("<32s4I", name.encode(), len(text), seq_len, len(gradients), learned))
    file.write(text.encode() + struct.pack("<d", loss))
    for array in (inputs, targets, starts):
        file.write(array.astype("<i4").tobytes())
    for tensor, gradient in gradients.items():
        file.write(struct.pack("<64sI", tensor.encode(), gradient.size) + gradient.astype("<f4").tobytes())
    print(f"{name}: {len(documents)} documents, {learned} of {targets.size} rows learned, loss {loss:.6f}")
    print(f"    differences: transformers' own loss {apart[0]:.1e}, packed loss {apart[1]:.1e}, packed"
          f" gradients {apart[2]:.1e}")
    print(f"    the mean of the documents' means is {means[0]:.6f}, of the sequences' means {means[1]:.6f}")


def main(path):
    torch.manual_seed(0)
    with open(path, "wb") as file:
        file.write(b"TIDEPACK" + struct.pack("<3I", 1, SEQUENCES, len(CASES)))
        for case in CASES:
            write_case(file, *case)


if __name__ == "__main__":
    main(*sys.argv[1:])
