"""Reads a shard (see shard.py) after it has checked every byte of it."""
import os

import google_crc32c
import numpy as np

from .faults import Failure
from .shard import BLOCK, HEADER, MAGIC, VERSION, id_bytes, sections


class ShardReader:
    """An open shard that is whole: sizes, CRC, starts and ids have been checked."""

    def __init__(self, path):
        self.path = path
        try:
            self.file = open(path, "rb")
            self.size = os.fstat(self.file.fileno()).st_size
            self._read_header()
            self._check_crc()
            self._check_ids()
            self._check_starts()
        except OSError as error:
            raise Failure(f"{path}: {error.strerror}") from error

    def _refuse(self, why):
        raise Failure(f"{self.path}: {why}")

    def _read_header(self):
        header = self.file.read(HEADER.size)
        if header[:8] != MAGIC:
            self._refuse("it is no shard of tokens: it does not begin with TIDETOK1")
        if len(header) < HEADER.size:
            self._refuse(f"it ends within the header, after {len(header)} bytes")
        _, version, width, self.tokens, self.documents, self.vocabulary, flags, self.sha256 = HEADER.unpack(
            header)
        if version != VERSION:
            self._refuse(f"it has version {version}, not {VERSION}")
        if width not in (2, 4) or width < id_bytes(self.vocabulary):
            self._refuse(f"ids of {width} bytes do not hold a vocabulary of {self.vocabulary}")
        if flags != 0:
            self._refuse(f"it has unknown flags {flags:#x}")
        if not 0 < self.documents <= self.tokens:
            self._refuse(f"{self.documents} documents can't have {self.tokens} tokens")
        self.dtype = np.dtype(f"<u{width}")
        self.mask_at, self.starts_at, self.crc_at = sections(width, self.tokens, self.documents)
        if self.size != self.crc_at + 4:
            self._refuse(
                f"it has {self.size} bytes; {self.tokens} tokens in {self.documents} documents take "
                f"{self.crc_at + 4}")

    def _check_crc(self):
        crc, left = 0, self.crc_at
        self.file.seek(0)
        while left:
            block = self.file.read(min(BLOCK, left))
            if not block:
                self._refuse("it became shorter while it was read")
            crc = google_crc32c.extend(crc, block)
            left -= len(block)
        if int.from_bytes(self.file.read(4), "little") != crc:
            self._refuse("it is damaged: its CRC-32C is another")

    def _array(self, offset, dtype, begin, end):
        """Returns items begin to end of the section at this offset."""
        self.file.seek(offset + begin * dtype.itemsize)
        return np.frombuffer(self.file.read((end - begin) * dtype.itemsize), dtype)

    def _ranges(self, count):
        return ((begin, min(begin + BLOCK, count)) for begin in range(0, count, BLOCK))

    def _check_ids(self):
        for begin, end in self._ranges(self.tokens):
            ids = self._array(HEADER.size, self.dtype, begin, end)
            if int(ids.max()) >= self.vocabulary:
                self._refuse(f"token {begin + int(ids.argmax())} is {int(ids.max())}; its vocabulary has "
                             f"{self.vocabulary}")

    def _check_starts(self):
        last = -1
        for begin, end in self._ranges(self.documents):
            starts = self._array(self.starts_at, np.dtype("<u8"), begin, end)
            if begin == 0 and starts[0] != 0:
                self._refuse(f"its first document starts at token {starts[0]}")
            if last >= int(starts[0]) or (starts[1:] <= starts[:-1]).any() or int(starts[-1]) >= self.tokens:
                self._refuse("the starts of its documents do not rise, or rise beyond its tokens")
            last = int(starts[-1])

    def document(self, number):
        """Returns ids and learned bits of a document."""
        last = min(number + 2, self.documents)
        starts = self._array(self.starts_at, np.dtype("<u8"), number, last).tolist()
        begin, end = starts[0], starts[1] if len(starts) == 2 else self.tokens
        ids = self._array(HEADER.size, self.dtype, begin, end)
        packed = self._array(self.mask_at, np.dtype("u1"), begin // 8, -(-end // 8))
        bits = np.unpackbits(packed, bitorder="little")[begin % 8:]
        return ids, bits[:end - begin].astype(bool)
