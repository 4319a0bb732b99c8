"""The files of a run: all of them appear in the output folder at its end, or none does.

Until then they lie in a hidden folder there. A run without --eval-fraction writes STEM_000000.bin and so on;
with it each line of the input is hashed to one of two sides, and its documents go to STEM_train_000000.bin or
STEM_val_000000.bin. `tidepool train` finds validation data by such words in names, so that a stem that has
one by chance gets another.
"""
import hashlib
import os
import re
import shutil
import tempfile
from pathlib import Path

from .faults import Failure
from .shard import ShardWriter

WORDS = re.compile(r"(?:(?<=[_.-])|^)(train|val|valid|validation|dev)(?=[_.-]|$)", re.IGNORECASE)


def stem_of(name):
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "_", Path(name).stem).lstrip(".-")
    return WORDS.sub("data", stem)[:100] or "data"


class Side:
    """One sequence of shards: the training or the validation files, or all."""

    def __init__(self, folder, name, shard_tokens, writer_arguments):
        self.folder, self.name = folder, name
        self.shard_tokens, self.writer_arguments = shard_tokens, writer_arguments
        self.shards = [self._next(0)]

    def _next(self, number):
        return ShardWriter(self.folder / f"{self.name}_{number:06}.bin", *self.writer_arguments)

    def append(self, ids, learned):
        self.shards[-1].append(ids, learned)

    def end_document(self):
        """Ends the open document; it moves to a new shard if it makes this one too long. A document that is
        too long by itself gets a shard of its own."""
        shard = self.shards[-1]
        if shard.tokens > self.shard_tokens and shard.documents > 0:
            self.shards.append(self._next(len(self.shards)))
            shard.move_open_document(self.shards[-1])
            shard.finish()
        self.shards[-1].end_document()

    def is_empty(self):
        return self.shards[0].documents == 0


class Output:

    def __init__(self, folder, stem, fraction, seed, shard_tokens, writer_arguments):
        self.folder, self.fraction, self.seed = Path(folder), fraction, seed
        self.made = []  # folders, the outermost first
        self.hidden = None
        self.sides = []
        try:
            self._make_folder()
            self._refuse_others()
            self.hidden = Path(tempfile.mkdtemp(prefix=".tidepool-tokenize-", dir=self.folder))
            names = [f"{stem}_train", f"{stem}_val"] if fraction > 0 else [stem]
            for name in names:
                self.sides.append(Side(self.hidden, name, shard_tokens, writer_arguments))
        except BaseException:
            self.discard()
            raise

    def _make_folder(self):
        missing = [place for place in (self.folder, *self.folder.parents) if not place.exists()]
        for place in reversed(missing):
            place.mkdir()
            self.made.append(place)

    def _refuse_others(self):
        others = sorted(self.folder.glob("*.bin"))
        if others:
            raise Failure(f"--out {self.folder}: it holds {others[0].name} already: name another folder")

    def side(self, line):
        """Returns the side on which all documents of this line (counted over all inputs) belong."""
        if self.fraction == 0:
            return self.sides[0]
        drawn = hashlib.blake2b(f"{self.seed} {line}".encode(), digest_size=8).digest()
        return self.sides[int.from_bytes(drawn, "little") < self.fraction * 2**64]

    def tokens(self):
        return sum(shard.tokens for side in self.sides for shard in side.shards)

    def publish(self):
        """Completes all files and moves them to the folder; returns (path, writer) of each."""
        if all(side.is_empty() for side in self.sides):
            raise Failure("no document came out of the inputs")
        if any(side.is_empty() for side in self.sides):
            empty = "train" if self.sides[0].is_empty() else "val"
            raise Failure(
                f"--eval-fraction {self.fraction:g} leaves no document for {empty}: there are too few lines")
        shards = [shard for side in self.sides for shard in side.shards]
        for side in self.sides:
            side.shards[-1].finish()
        self._refuse_others()
        published = []
        try:
            for shard in shards:
                path = self.folder / shard.path.name
                published.append(path)
                os.rename(shard.path, path)
            _sync(self.folder)
        except BaseException:
            for path in published:
                path.unlink(missing_ok=True)
            raise
        shutil.rmtree(self.hidden)
        return list(zip(published, shards))

    def discard(self):
        """Removes all that this run made, as far as it can."""
        for side in self.sides:
            for shard in side.shards:
                shard.close()
        if self.hidden is not None:
            shutil.rmtree(self.hidden, ignore_errors=True)
        for place in reversed(self.made):
            try:
                place.rmdir()
            except OSError:
                pass


def _sync(folder):
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
