"""A shard of tokens: the format, and its writer.

    header  64 bytes, little endian: "TIDETOK1", u32 version 1, u32 bytes an id (2 or 4), u64 tokens,
            u64 documents, u32 vocabulary, u32 flags (0), the first 24 bytes of the SHA-256 of tokenizer.json
            (zeros without one)
    ids     2 or 4 bytes each
    mask    a bit each, least significant first: the token is learned as a target. A document's first
            token has 0, since nothing in its document precedes it
    starts  u64 each: the first token of each document; the first is 0, each is greater than the one before
    crc     u32: CRC-32C of all bytes before

Each section but the last begins at a multiple of 8 bytes, with zeros before it. The writer needs constant
memory: ids go straight into the file, bits (a byte each) and starts into two others until the shard ends; the
header comes last.
"""
import os
import struct

import google_crc32c
import numpy as np

MAGIC = b"TIDETOK1"
VERSION = 1
HEADER = struct.Struct("<8sIIQQII24s")
BLOCK = 1 << 20


def id_bytes(vocabulary):
    return 2 if vocabulary <= 1 << 16 else 4


def aligned(offset):
    return -(-offset // 8) * 8


def sections(width, tokens, documents):
    """Returns where mask, starts and CRC begin."""
    mask = aligned(HEADER.size + width * tokens)
    starts = aligned(mask + -(-tokens // 8))
    return mask, starts, starts + 8 * documents


class ShardWriter:
    """Writes one shard. The documents come one after another, each in one or more pieces."""

    def __init__(self, path, vocabulary, sha256):
        self.path, self.vocabulary, self.sha256 = path, vocabulary, sha256
        self.dtype = np.dtype(f"<u{id_bytes(vocabulary)}")
        self.tokens = self.documents = self.learned = self.longest = 0
        self.document_start = 0  # first token of the open document
        self.ids = open(path, "w+b")
        self.bits = open(f"{path}.bits", "w+b")
        self.starts = open(f"{path}.starts", "w+b")
        self.ids.write(bytes(HEADER.size))

    def append(self, ids, learned):
        """Adds a piece to the open document, with an array of ids and one of bits."""
        if len(ids) == 0:
            return
        if self.tokens == self.document_start:
            learned = np.concatenate([[False], learned[1:]])
        self.ids.write(ids.astype(self.dtype).tobytes())
        self.bits.write(learned.astype(np.uint8).tobytes())
        self.tokens += len(ids)
        self.learned += int(np.count_nonzero(learned))

    def open_tokens(self):
        return self.tokens - self.document_start

    def end_document(self):
        """Ends the open document, unless it is empty."""
        if self.open_tokens() == 0:
            return
        self.starts.write(struct.pack("<Q", self.document_start))
        self.documents += 1
        self.longest = max(self.longest, self.open_tokens())
        self.document_start = self.tokens

    def move_open_document(self, other):
        """Moves the open document to another shard of the same vocabulary, as its open one."""
        self.ids.seek(HEADER.size + self.document_start * self.dtype.itemsize)
        self.bits.seek(self.document_start)
        while bits := self.bits.read(BLOCK):
            ids = np.frombuffer(self.ids.read(len(bits) * self.dtype.itemsize), self.dtype)
            learned = np.frombuffer(bits, bool)
            other.append(ids, learned)
            self.learned -= int(np.count_nonzero(learned))
        self.tokens = self.document_start
        self.ids.seek(HEADER.size + self.tokens * self.dtype.itemsize)
        self.ids.truncate()
        self.bits.seek(self.tokens)
        self.bits.truncate()

    def finish(self):
        """Completes the file, brings it to the disk and closes it."""
        mask, starts, _ = sections(self.dtype.itemsize, self.tokens, self.documents)
        self._pad(mask)
        for block in _blocks(self.bits):
            self.ids.write(np.packbits(np.frombuffer(block, np.uint8), bitorder="little").tobytes())
        self._pad(starts)
        for block in _blocks(self.starts):
            self.ids.write(block)
        self.ids.seek(0)
        self.ids.write(
            HEADER.pack(MAGIC, VERSION, self.dtype.itemsize, self.tokens, self.documents, self.vocabulary, 0,
                        self.sha256))
        crc = 0
        for block in _blocks(self.ids):
            crc = google_crc32c.extend(crc, block)
        self.ids.write(struct.pack("<I", crc))
        self.ids.flush()
        os.fsync(self.ids.fileno())
        self.close()
        for kind in ("bits", "starts"):
            os.unlink(f"{self.path}.{kind}")

    def _pad(self, end):
        self.ids.write(bytes(end - self.ids.tell()))

    def close(self):
        """Closes the files. A full disk can't be told of buffered bytes here: the caller has seen it, or
        gives up."""
        for file in (self.ids, self.bits, self.starts):
            try:
                file.close()
            except OSError:
                pass


def _blocks(file):
    """Yields the file in blocks of a size that bits fill whole bytes of."""
    file.seek(0)
    while block := file.read(BLOCK):
        yield block
