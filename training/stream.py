"""Batches of packed dialogues, made by worker processes while the GPU trains.

A row holds whole documents only; model.py keeps them apart. Most batches have short rows; each
eighth has long rows, for documents of up to 4,608 tokens, on every GPU at the same step. Both
have the same number of tokens.
"""

import multiprocessing
import os
import queue
import traceback
from collections import deque

import numpy as np

from data.mix import LONG, MIX, Mixture
from render import encoded

SHORT_TOKENS, LONG_TOKENS = 1024, 4608
BATCH_TOKENS = 54 * SHORT_TOKENS  # 12 long rows
LONG_EVERY = 8
SILENCE_S_MAX = 180
OVERDRAW = 1.3  # documents to choose from when a batch is packed, in batches


class Stream:
    """Endless batches: (tokens, documents, weights), each [rows, tokens], uint16, uint16, uint8.
    Start it before CUDA is used: the workers are forked."""

    def __init__(self, tokenizer_path, workers, seed, scale=1.0):
        context = multiprocessing.get_context("fork")
        self.queue = context.Queue(maxsize=3 * workers)
        self.waiting = {False: deque(), True: deque()}  # batches of the kind that was not asked for
        self.workers = [
            context.Process(target=work, args=(self.queue, str(tokenizer_path), seed * 1000 + i, scale), daemon=True)
            for i in range(workers)
        ]
        for worker in self.workers:
            worker.start()

    def next(self, step):
        """The batch of a step: its kind of rows follows from the step's number."""
        long = step % LONG_EVERY == LONG_EVERY - 1
        while not self.waiting[long]:
            try:
                kind, batch = self.queue.get(timeout=SILENCE_S_MAX)
            except queue.Empty:
                raise RuntimeError(f"no batch in {SILENCE_S_MAX} s: the data workers are stuck or dead") from None
            if kind == "error":
                raise RuntimeError(f"a data worker failed:\n{batch}")
            self.waiting[batch[0].shape[1] != SHORT_TOKENS].append(batch)
        return self.waiting[long].popleft()

    def ready(self):
        return self.queue.qsize()

    def stop(self):
        for worker in self.workers:
            worker.terminate()


def work(out, tokenizer_path, seed, scale):
    try:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(tokenizer_path)
        for batch in batches(tokenizer, seed, int(BATCH_TOKENS * scale)):
            out.put(("batch", batch))
    except KeyboardInterrupt:
        pass
    except BaseException:
        out.put(("error", traceback.format_exc()))


def batches(tokenizer, seed, size):
    mixture = Mixture(seed)
    short, long = [], []  # documents left over
    while True:
        if mixture.pool.rng.random() < 1 / LONG_EVERY:
            while total(long) < OVERDRAW * size:
                keep(encoded(mixture.draw(LONG), tokenizer), short, long)
            rows, long = packed(long, size, LONG_TOKENS)
        else:
            while total(short) < OVERDRAW * size:
                keep(encoded(mixture.draw(MIX), tokenizer), short, long)
            rows, short = packed(short, size, SHORT_TOKENS)
        yield rows


def keep(document, short, long):
    if len(document[0]) <= SHORT_TOKENS:
        short.append(document)
    elif len(document[0]) <= LONG_TOKENS:
        long.append(document)


def total(documents):
    return sum(len(ids) for ids, _ in documents)


def packed(documents, size, length):
    """Fills size/length rows, the longest documents first; returns the batch and what is left."""
    count = max(1, size // length)
    free, rows, left = [length] * count, [[] for _ in range(count)], []
    for document in sorted(documents, key=lambda d: -len(d[0])):
        need = len(document[0])
        # the fullest row that still has room
        best = min((r for r in range(count) if free[r] >= need), key=free.__getitem__, default=None)
        if best is None:
            left.append(document)
        else:
            rows[best].append(document)
            free[best] -= need
    tokens = np.zeros((count, length), np.uint16)
    numbers, weights = np.zeros_like(tokens), np.zeros((count, length), np.uint8)
    for r, row in enumerate(rows):
        at = 0
        for number, (ids, weight) in enumerate(row, start=1):
            end = at + len(ids)
            tokens[r, at:end], numbers[r, at:end], weights[r, at:end] = ids, number, weight
            at = end
    return (tokens, numbers, weights), left


def exam_batches(tokenizer, seed, per_skill, size=BATCH_TOKENS):
    """Held-out documents by skill: [(skill, batch)], for the loss and exact answers."""
    mixture, found = Mixture(seed, held=True), {}
    draws = 0
    while draws < 400 * per_skill and (draws < 20 * per_skill or any(len(d) < per_skill for d in found.values())):
        task = mixture.draw()
        draws += 1
        documents = found.setdefault(task.skill, [])
        if len(documents) < per_skill:
            documents.append(encoded(task, tokenizer))
    while len(found.setdefault("recall_4096", [])) < per_skill:
        document = encoded(mixture.draw(LONG), tokenizer)
        if 2000 < len(document[0]) <= LONG_TOKENS:
            found["recall_4096"].append(document)
    made = []
    for skill, documents in sorted(found.items()):
        while documents:
            length = LONG_TOKENS if max(len(d[0]) for d in documents) > SHORT_TOKENS else SHORT_TOKENS
            batch, documents = packed(documents, size, length)
            made.append((skill, batch))
    return made
