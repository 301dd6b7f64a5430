"""Golden data for GGUF files: every type of elements that is read, and tiny Llama and Qwen models.

Writes crates/model-center/tests/golden/gguf; the README.md there describes every file. The data are committed; run this
only to change them:

    $(scripts/python_env.sh) scripts/golden/make_gguf.py            # writes the directory
    $(scripts/python_env.sh) scripts/golden/make_gguf.py --check    # recomputes it and compares with the old one
"""

import argparse
import filecmp
import json
import math
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType, GGUFWriter
from gguf.quants import dequantize, quantize

PINNED = {"gguf": "0.19.0", "numpy": "2.4.6"}
DEFAULT_OUT = Path(__file__).resolve().parents[2] / "crates/model-center/tests/golden/gguf"

TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q6_K", "Q5_K"]
WIDTH, HEADS, KV_HEADS, HEAD, WIDE = 32, 2, 1, 16, 36
LAYERS = {"llama": 2, "qwen2": 1, "qwen3": 1}


def save_safetensors(path, arrays):
    """F32 and F16 arrays as one safetensors file."""
    names, header, data = {"float32": "F32", "float16": "F16"}, {}, b""
    for name, array in sorted(arrays.items(), key=lambda item: (-item[1].itemsize, item[0])):
        begin, data = len(data), data + array.tobytes()
        header[name] = {"dtype": names[array.dtype.name], "shape": list(array.shape),
                        "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def finish(writer):
    """Write the parts of a file in their order."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_types(out):
    """One row of 512 elements of each type from random bits, so that scales are also huge, subnormal, infinite and
    NaN."""
    generator, expected = np.random.default_rng(1), {}
    writer = GGUFWriter(out / "types.gguf", "none")
    for kind, value in [("uint8", 200), ("int8", -3), ("uint16", 60000), ("int16", -300), ("uint32", 4000000000),
                        ("int32", -70000), ("uint64", 2**40), ("int64", -(2**40)), ("float32", 0.1), ("float64", 0.1),
                        ("bool", True), ("string", "Grüße")]:
        getattr(writer, f"add_{kind}")(f"value.{kind}", value)
    writer.add_array("array.texts", ["a", "", "ü"])
    writer.add_array("array.wholes", [1, -2, 3])
    writer.add_array("array.arrays", [[1, 2], [3]])
    for name in TYPES:
        kind = GGMLQuantizationType[name]
        elements, size = GGML_QUANT_SIZES[kind]
        raw = generator.integers(0, 256, (1, 512 // elements * size), dtype=np.uint8)
        plain = {"F32": np.float32, "F16": np.float16}.get(name)
        if plain:
            writer.add_tensor(name, raw.view(plain))
            expected[name] = raw.view(plain).astype(np.float32)
        else:
            writer.add_tensor(name, raw, raw_shape=raw.shape, raw_dtype=kind)
            expected[name] = dequantize(raw, kind)
    finish(writer)
    save_safetensors(out / "types.safetensors", expected)


def to_interleaved(rows, heads):
    """The row order of a llama file: the two halves of each head alternate."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def from_interleaved(rows, heads):
    """Hugging Face's row order again."""
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def rotary_factors(base, factor):
    """The divisors of Llama 3's rotary frequencies."""
    factors = []
    for frequency in 1.0 / base ** (np.arange(0, HEAD, 2, dtype=np.float32) / HEAD):
        wavelength = 2 * math.pi / float(frequency)
        if wavelength < 8192 / 4:
            factors.append(1.0)
        elif wavelength > 8192 / 1:
            factors.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, dtype=np.float32)


def vocabulary():
    """Tokens of a byte-level BPE, their types, and the merges."""
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld", "1 2", "Ã ©"]
    words = list("abcdehlorw.,!'123<>/intkĠĊÃ©Ì\u0123") + [merge.replace(" ", "") for merge in merges]
    types = [1] * len(words)
    for word, kind in [("<|begin|>", 3), ("<|end|>", 3), ("<think>", 4)]:
        words.append(word)
        types.append(kind)
    return words, types, merges


def pieces():
    """Pieces of SentencePiece's kind with their types and scores: single bytes, joined pieces, then their letters."""
    words, types = ["<unk>", "<s>", "</s>", "<0x0A>", "<0xC3>", "<0xA9>"], [2, 3, 3, 6, 6, 6]
    joined = ["▁h", "el", "lo", "▁hel", "▁hello", "▁w"] + list("▁helow")
    scores = [0.0] * len(words) + [-float(place) for place in range(len(joined))]
    return words + joined, types + [1] * len(joined), scores


def start(path, family, words, tensors):
    """A file with the sizes of a tiny model."""
    writer = GGUFWriter(path, family)
    writer.add_name("tiny")
    writer.add_block_count(LAYERS[family])
    writer.add_context_length(131072)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(WIDE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500000.0)
    writer.add_vocab_size(len(words))
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_shape=data.shape, raw_dtype=kind)
    return writer


def sample(generator, shape, name):
    """A random tensor in a type that depends on its name: queries and keys quantised, vectors F32, the rest F16."""
    kind = {"attn_q": "Q8_0", "attn_k": "Q4_1"}.get(name, "F16") if len(shape) == 2 else "F32"
    return generator.normal(size=shape).astype(np.float32), GGMLQuantizationType[kind]


def model_tensors(family, seed, words):
    """The tensors of a file by their names there, and what they are under Hugging Face's names."""
    generator, stored, expected = np.random.default_rng(seed), {}, {}

    def put(here, there, shape, heads=None):
        values, kind = sample(generator, shape, here.split(".")[-2])
        if heads:
            values = to_interleaved(values, heads)
        data = quantize(values, kind)
        plain = kind in (GGMLQuantizationType.F32, GGMLQuantizationType.F16)
        values = data if plain else dequantize(data, kind)
        stored[here] = (data, kind)
        expected[there] = np.ascontiguousarray(from_interleaved(values, heads) if heads else values)

    put("token_embd.weight", "model.embed_tokens.weight", (words, WIDTH))
    put("output_norm.weight", "model.norm.weight", (WIDTH,))
    if family == "llama":
        put("output.weight", "lm_head.weight", (words, WIDTH))
        stored["rope_freqs.weight"] = (rotary_factors(500000.0, 8.0), GGMLQuantizationType.F32)
    query, key = HEADS * HEAD, KV_HEADS * HEAD
    for layer in range(LAYERS[family]):
        here, there = f"blk.{layer}", f"model.layers.{layer}"
        put(f"{here}.attn_norm.weight", f"{there}.input_layernorm.weight", (WIDTH,))
        put(f"{here}.ffn_norm.weight", f"{there}.post_attention_layernorm.weight", (WIDTH,))
        interleaved = (HEADS, KV_HEADS) if family == "llama" else (None, None)
        for part, name, shape, heads in [
                ("attn_q", "self_attn.q_proj", (query, WIDTH), interleaved[0]),
                ("attn_k", "self_attn.k_proj", (key, WIDTH), interleaved[1]),
                ("attn_v", "self_attn.v_proj", (key, WIDTH), None),
                ("attn_output", "self_attn.o_proj", (WIDTH, query), None),
                ("ffn_gate", "mlp.gate_proj", (WIDE, WIDTH), None),
                ("ffn_up", "mlp.up_proj", (WIDE, WIDTH), None),
                ("ffn_down", "mlp.down_proj", (WIDTH, WIDE), None)]:
            put(f"{here}.{part}.weight", f"{there}.{name}.weight", shape, heads)
            if part in {"llama": ["attn_q", "attn_k", "attn_v", "attn_output"],
                        "qwen2": ["attn_q", "attn_k", "attn_v"], "qwen3": []}[family]:
                put(f"{here}.{part}.bias", f"{there}.{name}.bias", shape[:1], heads)
        if family == "qwen3":
            put(f"{here}.attn_q_norm.weight", f"{there}.self_attn.q_norm.weight", (HEAD,))
            put(f"{here}.attn_k_norm.weight", f"{there}.self_attn.k_norm.weight", (HEAD,))
    return stored, expected


def make_models(out):
    """A Llama that is untied, has biases and Llama 3's rotary scaling; a Qwen2; a Qwen3 whose vocabulary is
    SentencePiece's."""
    for seed, (family, kind, pre) in enumerate([("llama", "gpt2", "llama-bpe"), ("qwen2", "gpt2", "qwen2"),
                                                ("qwen3", "llama", "default")]):
        words, types, merges = vocabulary()
        begin, end = "<|begin|>", "<|end|>"
        if kind == "llama":
            words, types, scores = pieces()
            begin, end = "<s>", "</s>"
        tensors, expected = model_tensors(family, seed + 2, len(words))
        writer = start(out / f"{family}.gguf", family, words, tensors)
        writer.add_tokenizer_model(kind)
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(words)
        writer.add_token_types(types)
        if kind == "llama":
            writer.add_token_scores(scores)
            writer.add_unk_token_id(words.index("<unk>"))
        else:
            writer.add_token_merges(merges)
        writer.add_bos_token_id(words.index(begin))
        writer.add_eos_token_id(words.index(end))
        writer.add_chat_template("{% for message in messages %}{{ message['content'] }}<|end|>{% endfor %}")
        if family == "qwen2":
            writer.add_add_bos_token(False)
            writer.add_key_value("qwen2.rope.scaling.type", "yarn", GGUFValueType.STRING)
            writer.add_key_value("qwen2.rope.scaling.factor", 4.0, GGUFValueType.FLOAT32)
            writer.add_key_value("qwen2.rope.scaling.original_context_length", 32768, GGUFValueType.UINT32)
        finish(writer)
        # Elsewhere Hugging Face's tensors are the file's own under other names.
        if family == "llama":
            save_safetensors(out / "llama.safetensors", expected)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed files instead of writing them")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    arguments = parser.parse_args()
    found = {name: version(name) for name in PINNED}
    if found != PINNED:
        sys.exit(f"the goldens were made with {PINNED}, this environment has {found}")
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) if arguments.check else arguments.out
        made.mkdir(parents=True, exist_ok=True)
        make_types(made)
        make_models(made)
        if arguments.check:
            names = sorted(path.name for path in made.iterdir())
            _, differing, absent = filecmp.cmpfiles(made, arguments.out, names, shallow=False)
            if differing or absent:
                sys.exit(f"other bytes than committed: {differing + absent}")
            print(f"{len(names)} files equal")


if __name__ == "__main__":
    main()
