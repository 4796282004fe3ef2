"""Trains the seedling: one command for each piece of the run.

    python training/train.py --out DIR --seconds 520 --share 0 0.5     first half of the schedule
    python training/train.py --out DIR --seconds 520 --share 0.5 1     second half, same machine

The schedule runs by the clock: `--share A B` says which part of it this piece covers, `--seconds`
how long the piece may take, start included. The second piece goes on from --state (weights and
optimiser, on the machine's disk) or, when it is given, from --start (a folder with exported weights,
or models/seedling) with a fresh optimiser. All GPUs of the machine are used.

Writes into --out: weights in shards under 16 MiB, config.json, log.jsonl and exam.json.
"""

import argparse
import json
import math
import os
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
import torch
import torch.nn.functional as F

from export import load, save
from family import SEEDLING_TEXT_CONFIG
from model import Functions, Seedling
from quant import rounded
from stream import BATCH_TOKENS, SHORT_TOKENS, Stream, exam_batches

BUILD = Path(__file__).resolve().parent / "build"
RATE, RATE_END, FLAT_UNTIL, WARM_UP_STEPS = 2e-3, 0.02, 0.4, 200
RESTART_STEPS = 60  # warm-up of a fresh optimiser on trained weights
BETAS, DECAY, CLIP = (0.9, 0.98), 0.05, 1.0
BALANCE = 0.01
DEAD_SHARE = 0.002  # an expert chosen by fewer of the tokens is reported
LOG_EVERY, SAVE_EVERY_S = 50, 120
TRIAL_STEPS = 15
EXAM_SEED, EXAM_PER_SKILL = 77, 150


def main():
    options = parsed()
    ranks = options.ranks or max(1, torch.cuda.device_count())
    options.cores = options.cores or len(os.sched_getaffinity(0))
    if ranks == 1:
        return run(0, 1, options)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29517")
    torch.multiprocessing.spawn(run, args=(ranks, options), nprocs=ranks)


def parsed():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="wall clock of this piece")
    parser.add_argument("--share", type=float, nargs=2, default=(0.0, 1.0), help="part of the schedule")
    parser.add_argument("--state", type=Path, default=Path("/tmp/seedling/state.pt"))
    parser.add_argument("--start", type=Path, help="folder with weights to go on from: a piece's --out, or a 4-bit one")
    parser.add_argument("--rounded-from", type=float, default=0.85,
                        help="share of the schedule after which weights are trained through their rounding")
    parser.add_argument("--exams", type=float, default=0.1, help="an exam after each such share of the schedule")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compile", action="store_true", help="try compiled functions, keep the faster")
    parser.add_argument("--cores", type=int, help="for all data workers together")
    parser.add_argument("--ranks", type=int, help="processes; default one a GPU")
    parser.add_argument("--tiny", action="store_true", help="a toy of the same form, to test this script")
    options = parser.parse_args()
    options.begun = time.time()
    return options


def run(rank, ranks, options):
    trainer = Trainer(rank, ranks, options)
    try:
        trainer.train()
    except BaseException:
        trainer.note(failed=traceback.format_exc())
        trainer.export("rescued")
        raise
    finally:
        trainer.stream.stop()


class Trainer:
    def __init__(self, rank, ranks, options):
        self.rank, self.ranks, self.options = rank, ranks, options
        self.scale = 0.025 if options.tiny else 1.0
        workers = max(1, options.cores // ranks - 2)
        seed = options.seed * 100 + rank + int(1e6 * options.share[0])
        # before CUDA: the workers are forked
        self.stream = Stream(BUILD / "tokenizer.json", workers, seed, self.scale)
        self.exam = Exam(options.tiny) if rank == 0 else None
        cuda = torch.cuda.is_available()
        self.device = torch.device(f"cuda:{rank}" if cuda else "cpu")
        self.dtype = torch.bfloat16 if cuda else torch.float32
        if cuda:
            torch.cuda.set_device(rank)
            torch.backends.cuda.matmul.allow_tf32 = True
        if ranks > 1:
            torch.distributed.init_process_group("nccl" if cuda else "gloo", rank=rank, world_size=ranks)
        torch.manual_seed(options.seed)  # the same weights on every rank
        self.shape = dict(SEEDLING_TEXT_CONFIG)
        if options.tiny:
            self.shape.update(hidden_size=64, num_hidden_layers=2, num_experts=4, moe_intermediate_size=64,
                              full_attention_interval=2, layer_types=["linear_attention", "full_attention"], head_dim=32,
                              linear_key_head_dim=16, linear_value_head_dim=16)
        self.model = Seedling(self.shape).to(self.device)
        self.parameters = dict(self.model.named_parameters())
        self.optimiser = self.fresh_optimiser(cuda)
        self.step, self.tokens, self.fresh = 0, 0, 0
        self.log = None
        if rank == 0:
            options.out.mkdir(parents=True, exist_ok=True)
            self.log = (options.out / "log.jsonl").open("a")
        self.resume()
        self.plain = self.functions = Functions()
        self.chosen, self.first_step = False, self.step
        self.progress, self.saved = options.share[0], time.time()

    def fresh_optimiser(self, fused):
        matrices = [p for n, p in self.parameters.items() if p.dim() > 1 and "conv1d" not in n]
        others = [p for n, p in self.parameters.items() if p.dim() == 1 or "conv1d" in n]
        groups = [dict(params=matrices, weight_decay=DECAY), dict(params=others, weight_decay=0.0)]
        return torch.optim.AdamW(groups, lr=RATE, betas=BETAS, fused=fused)

    def resume(self):
        """Goes on from exported weights or from the state on disk, or starts anew."""
        options = self.options
        if options.start:
            self.model.load_state_dict(load(options.start))
            self.fresh = WARM_UP_STEPS - RESTART_STEPS
            self.note(resumed=str(options.start), optimiser="fresh")
        elif options.share[0] > 0 and options.state.exists():
            state = torch.load(options.state, map_location=self.device, weights_only=True)
            self.model.load_state_dict(state["model"])
            self.optimiser.load_state_dict(state["optimiser"])
            self.step, self.tokens = state["step"], state["tokens"]
            self.fresh = WARM_UP_STEPS
            self.note(resumed=str(options.state))
        elif options.share[0] > 0:
            sys.exit(f"--share begins at {options.share[0]}, but there is no {options.state} and no --start")
        else:
            self.note(started=True, parameters=sum(p.numel() for p in self.parameters.values()))

    def train(self):
        log_every = 1 if self.options.tiny else LOG_EVERY
        clock, exam_at = time.time(), self.options.share[0]
        last_step, losses, data_wait = self.step, [], 0.0
        while self.progress < self.options.share[1]:
            waited = time.time()
            batch = self.stream.next(self.step)
            data_wait += time.time() - waited
            losses.append(self.one_step(batch))
            if self.options.compile and not self.chosen and self.step - self.first_step >= TRIAL_STEPS:
                self.choose_functions()
                clock, last_step, losses, data_wait = time.time(), self.step, [], 0.0
            if self.rank == 0 and self.step % log_every == 0:
                spent, done = time.time() - clock, self.step - last_step
                loss, shares = losses[-1], self.shares
                self.note(step=self.step, progress=round(self.progress, 4),
                          loss=round(torch.stack([l[0] for l in losses]).mean().item(), 4),
                          balance=round(loss[1].item(), 4), gradient=round(loss[2].item(), 3),
                          rate=self.rate(), tokens=self.tokens,
                          tokens_per_s=round(done * self.ranks * self.batch_tokens() / max(spent, 1e-9)),
                          data_wait=round(data_wait / max(spent, 1e-9), 3), ready=self.stream.ready(),
                          least_used=round(shares.min().item(), 5),
                          dead=int((shares < DEAD_SHARE).sum().item()))
                clock, last_step, losses, data_wait = time.time(), self.step, [], 0.0
            if self.rank == 0 and self.progress >= exam_at + self.options.exams:
                exam_at = self.progress
                self.examine()
                clock, last_step, losses, data_wait = time.time(), self.step, [], 0.0
            if self.rank == 0 and time.time() - self.saved > SAVE_EVERY_S:
                self.export("running")
        if self.rank == 0:
            self.finish()

    def finish(self):
        self.export("done")
        options = self.options
        options.state.parent.mkdir(parents=True, exist_ok=True)
        torch.save(dict(model=self.model.state_dict(), optimiser=self.optimiser.state_dict(),
                        step=self.step, tokens=self.tokens), options.state)
        full, four_bit = self.examine(final=True)
        (options.out / "exam.json").write_text(json.dumps(dict(bfloat16=full, four_bit=four_bit), indent=1) + "\n")

    def one_step(self, batch, functions=None):
        tokens, documents, weights = self.on_device(batch)
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate()
        loss, balance = self.loss(tokens, documents, weights, functions or self.functions)
        (loss + BALANCE * balance).backward()
        self.synchronise()
        for value in self.parameters.values():
            value.grad.nan_to_num_(0.0, 0.0, 0.0)  # a bad batch must not end the run
        norm = torch.nn.utils.clip_grad_norm_(self.parameters.values(), CLIP)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.step += 1
        self.fresh += 1
        self.tokens += self.ranks * tokens.numel()
        return loss.detach(), balance.detach(), norm.detach()

    def loss(self, tokens, documents, weights, functions):
        quantised = self.progress >= self.options.rounded_from
        logits, balance, self.shares = self.forward(tokens, documents, quantised, functions)
        each = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
        weight = weights[:, 1:].flatten()
        return (each * weight).sum() / weight.sum(), balance

    def forward(self, tokens, documents, quantised, functions):
        # a view, so that compiled functions see the same kind of tensor in both cases
        values = {
            name: rounded(name, value) if quantised else value.view_as(value)
            for name, value in self.parameters.items()
        }
        if tokens.shape[1] != SHORT_TOKENS:
            functions = self.plain  # long rows are few: not worth a compilation of their own
        return torch.func.functional_call(self.model, values, (tokens, documents, self.dtype, functions))

    def synchronise(self):
        """Means of the gradients over the ranks; the first rank's clock rules the schedule."""
        first, last = self.options.share
        now = first + (last - first) * (time.time() - self.options.begun) / self.options.seconds
        if self.ranks == 1:
            self.progress = now
            return
        gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
        flat = torch.cat([g.flatten() for g in gradients] + [gradients[0].new_tensor([now if self.rank == 0 else 0.0])])
        torch.distributed.all_reduce(flat)
        self.progress = flat[-1].item()
        flat /= self.ranks
        at = 0
        for gradient in gradients:
            gradient.copy_(flat[at : at + gradient.numel()].view_as(gradient))
            at += gradient.numel()

    def choose_functions(self):
        """Times some steps plain and compiled, and keeps the faster functions."""
        self.chosen, begun = True, time.time()
        speeds = {}
        try:
            compiled = Functions(lambda function: torch.compile(function, dynamic=False))
            for name, functions in (("plain", self.plain), ("compiled", compiled)):
                for count in (3, TRIAL_STEPS):
                    start = time.time()
                    for _ in range(count):
                        self.one_step(self.short_batch(), functions)
                    if self.device.type == "cuda":
                        torch.cuda.synchronize()
                    speeds[name] = (time.time() - start) / count
            if speeds["compiled"] < speeds["plain"]:
                self.functions = compiled
        except Exception:
            self.optimiser.zero_grad(set_to_none=True)
            self.note(compilation=traceback.format_exc()[-1500:])
        self.note(step_s={k: round(v, 4) for k, v in speeds.items()}, took_s=round(time.time() - begun, 1))

    def short_batch(self):
        return self.stream.next(step=0)

    def rate(self):
        p = self.progress
        down = 1.0 if p < FLAT_UNTIL else 1.0 - (1.0 - RATE_END) * min(1.0, (p - FLAT_UNTIL) / (1.0 - FLAT_UNTIL))
        return RATE * down * min(1.0, (self.fresh + 1) / WARM_UP_STEPS)

    def batch_tokens(self):
        return self.tokens // max(1, self.step) // self.ranks

    def on_device(self, batch):
        tokens, documents, weights = batch
        to = lambda a, kind: torch.from_numpy(a.astype(kind)).to(self.device, non_blocking=True)
        return to(tokens, np.int64), to(documents, np.int32), to(weights, np.float32) / 100

    @torch.no_grad()
    def examine(self, final=False):
        """Share of held-out documents whose every learned token is the most likely one: what greedy
        decoding would write. For prose, the loss."""
        start = time.time()
        results = []
        for quantised in (False, True) if final else (self.progress >= self.options.rounded_from,):
            scores = {}
            for skill, batch in self.exam.batches():
                tokens, documents, weights = self.on_device(batch)
                logits = self.forward(tokens, documents, quantised, self.plain)[0][:, :-1]
                learned = weights[:, 1:] == 1
                if skill == "prose":
                    each = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
                    right, count = each[learned.flatten()].sum().item(), int(learned.sum())
                else:
                    wrong = learned & (logits.argmax(-1) != tokens[:, 1:])
                    keys = documents.long() + torch.arange(len(tokens), device=self.device)[:, None] * 10_000
                    every = keys[:, 1:][learned].unique()
                    count, right = len(every), len(every) - len(keys[:, 1:][wrong].unique())
                before = scores.get(skill, (0, 0))
                scores[skill] = (before[0] + right, before[1] + count)
            results.append({skill: round(right / max(1, count), 4) for skill, (right, count) in scores.items()})
            self.note(exam=results[-1], four_bit=quantised, step=self.step, took_s=round(time.time() - start, 1))
        return results

    def export(self, why):
        if self.rank != 0:
            return
        with tempfile.TemporaryDirectory() as aside:  # a kill leaves whole files in --out
            save(self.model.state_dict(), self.shape, Path(aside))
            for path in Path(aside).iterdir():
                shutil.copyfile(path, self.options.out / path.name)
        self.saved = time.time()
        self.note(saved=why, step=self.step)

    def note(self, **values):
        if self.rank != 0:
            return
        values["s"] = round(time.time() - self.options.begun, 1)
        line = json.dumps(values)
        print(line, flush=True)
        self.log.write(line + "\n")
        self.log.flush()


class Exam:
    """Held-out batches, made by a process of their own while training starts."""

    def __init__(self, tiny):
        import multiprocessing

        context = multiprocessing.get_context("fork")
        self.receive, send = context.Pipe(duplex=False)
        self.made = None
        sizes = (1, SHORT_TOKENS) if tiny else (EXAM_PER_SKILL, BATCH_TOKENS)
        self.process = context.Process(target=self.make, args=(send, *sizes), daemon=True)
        self.process.start()

    @staticmethod
    def make(send, per_skill, size):
        from tokenizers import Tokenizer

        try:
            send.send(exam_batches(Tokenizer.from_file(str(BUILD / "tokenizer.json")), EXAM_SEED, per_skill, size))
        except BaseException:
            send.send(traceback.format_exc())

    def batches(self):
        if self.made is None:
            if not self.receive.poll(120):
                return []
            self.made = self.receive.recv()
            if isinstance(self.made, str):
                raise RuntimeError(f"the exam could not be made:\n{self.made}")
        return self.made


if __name__ == "__main__":
    main()
