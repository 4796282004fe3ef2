"""Writes a GGUF file of made-up weights with the shape of one of calla's checkpoints.

    python bench/cpu/made_up_gguf.py CHECKPOINT OUT.gguf [--quant q4_k] [--head q4_k]

Dimensions come from CHECKPOINT/config.json (what `calla synth` writes). Matrices get the quantisation
asked for; as llama.cpp's own converter has it, routers and vectors stay F32 and the small projections
of a DeltaNet's gates are Q8_0. The values have a standard deviation near 0.025, so that activations
stay as large as a trained model's. Nothing but Python is needed.
"""

import argparse
import json
import random
import struct
from array import array
from pathlib import Path

ALIGNMENT = 32
# Blocks of made-up data that are written again and again: no divisor of any dimension.
PERIOD = 4093
# Name: type number, weights in a block, bytes of a block.
TYPES = {
    "f32": (0, 1, 4),
    "q4_0": (2, 32, 18),
    "q8_0": (8, 32, 34),
    "q4_k": (12, 256, 144),
    "q6_k": (14, 256, 210),
}
# Of the key-value section.
U32, F32, STRING, ARRAY, I32 = 4, 6, 8, 9, 5


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--quant", choices=["q4_k", "q4_0"], default="q4_k", help="of the matrices (q4_k)")
    parser.add_argument("--head", choices=["q4_k", "q4_0", "q6_k"], help="of the output matrix (as the others)")
    args = parser.parse_args()
    config = json.loads((args.checkpoint / "config.json").read_text())["text_config"]
    written = write(config, args.out, args.quant, args.head or args.quant)
    print(f"{args.out}: {written / 1e9:.2f} GB")


def write(config, out, quant, head):
    """Writes the file under another name until it is whole; gives its size."""
    pairs = metadata(config)
    tensors = list(plan(config, quant, head))
    streams = {kind: Stream(kind) for kind in TYPES}
    part = out.with_name(out.name + ".part")
    with part.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)))
        for key, kind, value in pairs:
            file.write(text(key) + struct.pack("<I", kind) + packed(kind, value))
        offset = 0
        for name, shape, kind, _ in tensors:
            dims = struct.pack(f"<{len(shape)}Q", *reversed(shape))
            file.write(text(name) + struct.pack("<I", len(shape)) + dims)
            file.write(struct.pack("<IQ", TYPES[kind][0], offset))
            offset += padded(size(shape, kind))
        file.write(bytes(-file.tell() % ALIGNMENT))
        for _, shape, kind, values in tensors:
            length = size(shape, kind)
            chunks = [values(length // 4)] if values else streams[kind].read(length)
            for chunk in chunks:
                file.write(chunk)
            file.write(bytes(padded(length) - length))
        written = file.tell()
    part.rename(out)
    return written


def metadata(c):
    arch = "qwen35moe"
    rotary = int(c["head_dim"] * c["rope_parameters"]["partial_rotary_factor"])
    linear = c["linear_value_head_dim"] * c["linear_num_value_heads"]
    interval = c["layer_types"].index("full_attention") + 1
    assert all((kind == "full_attention") == ((layer + 1) % interval == 0) for layer, kind in enumerate(c["layer_types"]))
    sections = [rotary // 6, rotary // 6, rotary // 2 - 2 * (rotary // 6), 0]
    own = [
        ("block_count", U32, c["num_hidden_layers"]),
        ("context_length", U32, c["max_position_embeddings"]),
        ("embedding_length", U32, c["hidden_size"]),
        ("vocab_size", U32, c["vocab_size"]),
        ("attention.head_count", U32, c["num_attention_heads"]),
        ("attention.head_count_kv", U32, c["num_key_value_heads"]),
        ("attention.key_length", U32, c["head_dim"]),
        ("attention.value_length", U32, c["head_dim"]),
        ("attention.layer_norm_rms_epsilon", F32, c["rms_norm_eps"]),
        ("rope.dimension_count", U32, rotary),
        ("rope.dimension_sections", ARRAY, sections),
        ("rope.freq_base", F32, c["rope_parameters"]["rope_theta"]),
        ("feed_forward_length", U32, c["moe_intermediate_size"]),
        ("expert_count", U32, c["num_experts"]),
        ("expert_used_count", U32, c["num_experts_per_tok"]),
        ("expert_feed_forward_length", U32, c["moe_intermediate_size"]),
        ("expert_shared_feed_forward_length", U32, c["shared_expert_intermediate_size"]),
        ("ssm.conv_kernel", U32, c["linear_conv_kernel_dim"]),
        ("ssm.state_size", U32, c["linear_key_head_dim"]),
        ("ssm.group_count", U32, c["linear_num_key_heads"]),
        ("ssm.time_step_rank", U32, c["linear_num_value_heads"]),
        ("ssm.inner_size", U32, linear),
        ("full_attention_interval", U32, interval),
    ]
    general = [("general.architecture", STRING, arch), ("general.name", STRING, "made up")]
    return general + [(f"{arch}.{key}", *rest) for key, *rest in own] + [("tokenizer.ggml.model", STRING, "none")]


def plan(c, quant, head):
    """Name, dimensions with the outermost first, type, and what makes the values if not the stream."""
    hidden, vocab, dim = c["hidden_size"], c["vocab_size"], c["head_dim"]
    heads, kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
    value_heads, head_dim = c["linear_num_value_heads"], c["linear_value_head_dim"]
    values, keys = value_heads * head_dim, c["linear_num_key_heads"] * c["linear_key_head_dim"]
    experts, width, shared = c["num_experts"], c["moe_intermediate_size"], c["shared_expert_intermediate_size"]

    yield "token_embd.weight", (vocab, hidden), quant, None
    yield "output_norm.weight", (hidden,), "f32", gains
    yield "output.weight", (vocab, hidden), head, None
    for layer, mixer in enumerate(c["layer_types"]):
        mixers = {
            "full_attention": [
                ("attn_q.weight", (2 * heads * dim, hidden), quant, None),
                ("attn_k.weight", (kv_heads * dim, hidden), quant, None),
                ("attn_v.weight", (kv_heads * dim, hidden), quant, None),
                ("attn_q_norm.weight", (dim,), "f32", gains),
                ("attn_k_norm.weight", (dim,), "f32", gains),
                ("attn_output.weight", (hidden, heads * dim), quant, None),
            ],
            "linear_attention": [
                ("attn_qkv.weight", (2 * keys + values, hidden), quant, None),
                ("attn_gate.weight", (values, hidden), quant, None),
                ("ssm_beta.weight", (value_heads, hidden), "q8_0", None),
                ("ssm_alpha.weight", (value_heads, hidden), "q8_0", None),
                ("ssm_conv1d.weight", (2 * keys + values, c["linear_conv_kernel_dim"]), "f32", gains),
                ("ssm_a", (value_heads,), "f32", rates),
                ("ssm_dt.bias", (value_heads,), "f32", gains),
                ("ssm_norm.weight", (head_dim,), "f32", gains),
                ("ssm_out.weight", (hidden, values), quant, None),
            ],
        }
        rest = [
            ("attn_norm.weight", (hidden,), "f32", gains),
            ("post_attention_norm.weight", (hidden,), "f32", gains),
            ("ffn_gate_inp.weight", (experts, hidden), "f32", None),
            ("ffn_gate_exps.weight", (experts, width, hidden), quant, None),
            ("ffn_up_exps.weight", (experts, width, hidden), quant, None),
            ("ffn_down_exps.weight", (experts, hidden, width), quant, None),
            ("ffn_gate_inp_shexp.weight", (hidden,), "f32", None),
            ("ffn_gate_shexp.weight", (shared, hidden), quant, None),
            ("ffn_up_shexp.weight", (shared, hidden), quant, None),
            ("ffn_down_shexp.weight", (hidden, shared), quant, None),
        ]
        for name, *tensor in mixers[mixer] + rest:
            yield (f"blk.{layer}.{name}", *tensor)


class Stream:
    """Made-up blocks of one type, over and over."""

    def __init__(self, kind):
        rng = random.Random(kind)
        block = getattr(self, kind)
        self.data = b"".join(block(rng) for _ in range(PERIOD))
        self.at = 0

    def read(self, length):
        while length > 0:
            chunk = self.data[self.at : self.at + length]
            yield chunk
            length -= len(chunk)
            self.at = (self.at + len(chunk)) % len(self.data)

    @staticmethod
    def f32(rng):
        return struct.pack("<f", rng.gauss(0, 0.025))

    @staticmethod
    def q4_0(rng):
        # scale · (nibble - 8)
        return struct.pack("<e", 0.0054) + rng.randbytes(16)

    @staticmethod
    def q8_0(rng):
        # scale · byte
        return struct.pack("<e", 3.4e-4) + rng.randbytes(32)

    @staticmethod
    def q4_k(rng):
        # Eight times six bits of scale and of minimum: scale · nibble - minimum, on average 0.
        return struct.pack("<ee", 1e-4, 7.5e-4) + rng.randbytes(12 + 128)

    @staticmethod
    def q6_k(rng):
        # Six bits in two parts, then a signed scale for each 16 of them.
        scales = struct.pack("<16b", *(rng.randint(-20, 20) for _ in range(16)))
        return rng.randbytes(128 + 64) + scales + struct.pack("<e", 1e-4)


def gains(count):
    rng = random.Random(count)
    return array("f", (rng.gauss(1, 0.1) for _ in range(count))).tobytes()


def rates(count):
    """Of decay: below zero."""
    return array("f", (-1 - index / count for index in range(count))).tobytes()


def size(shape, kind):
    _, block, block_bytes = TYPES[kind]
    count = 1
    for dim in shape:
        count *= dim
    assert shape[-1] % block == 0, f"rows of {shape[-1]} in blocks of {block}"
    return count // block * block_bytes


def padded(length):
    return length + -length % ALIGNMENT


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def packed(kind, value):
    if kind == STRING:
        return text(value)
    if kind == ARRAY:
        return struct.pack(f"<IQ{len(value)}i", I32, len(value), *value)
    return struct.pack("<f" if kind == F32 else "<I", value)


if __name__ == "__main__":
    main()
