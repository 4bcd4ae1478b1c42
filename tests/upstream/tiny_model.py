"""A tiny language model with random weights, as a GGUF file that llama.cpp's server loads. Standard library only.

It talks nonsense, but it talks: made of words, ended now and then, never
beginning inside a UTF-8 character. Its vocabulary is the 256 bytes, some words
built by merges, and the control tokens of ChatML. One channel of every
embedding is the same constant, and nothing in the network writes to it, so the
output weights of that channel are a bias for each token. Three more channels
carry what must follow what: a newline behind `<tool_call>`, the end of the turn
behind `</tool_call>`, and a closing quote behind a plain character where the
server's grammar allows one, so that free strings in JSON stay short.

The same arguments give the same bytes.
"""

from __future__ import annotations

import random
import struct
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CHAT_TEMPLATE: Final = Path(__file__).with_name("chat.jinja")
CONTEXT_TOKENS: Final = 8192
ALIGNMENT: Final = 32
WORDS: Final = (
    "the a to of and is in it you that hello world yes no ok one two three we can with for on this not are be as at by "
    "from have or an was but what all were when there use your how said each she which do their time if will way about "
    "many then them write would like so these her long make thing see him has look more day could go come did number "
    "sound most people my over know water than call first who may down side been now find any new work part take get"
)
# How likely each sort of token is; the end of a turn and a tool call are the model's own choice.
BIAS: Final = {"word": 1.0, "start of a word": -4.0, "character": -4.0, "space": -9.0, "half a character": -7.0,
               "padding": -20.0, "end of a call": -1.5}  # fmt: skip
FOLLOWS: Final = 20.0  # strong enough to leave nothing to chance


@dataclass(frozen=True)
class Model:
    """`end_bias` and `call_bias`: how readily a turn ends, or begins with a tool call. The sizes make it slower."""

    end_bias: float
    call_bias: float
    embedding: int = 64
    heads: int = 4
    layers: int = 2
    feed_forward: int = 128


TALKS: Final = Model(end_bias=2.0, call_bias=-6.0)
CALLS_TOOLS: Final = Model(end_bias=0.0, call_bias=3.0)
# Never ends by itself; 35 MB, a few hundred tokens a second.
SLOW: Final = Model(end_bias=-20.0, call_bias=-20.0, embedding=256, heads=8, layers=8, feed_forward=1024)


def write(path: Path, model: Model) -> None:
    """Writes the model; whole or not at all."""
    vocabulary = Vocabulary()
    contents = _gguf(_metadata(model, vocabulary), _tensors(model, vocabulary))
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(contents)
    unfinished.replace(path)


# --- the vocabulary -----------------------------------------------------------------------------------------


class Vocabulary:
    """Token texts in GPT-2's spelling of bytes, what sort each is, and the merges that build the words."""

    def __init__(self) -> None:
        self.texts: list[str] = list(_BYTE_SPELLING)
        self.sorts: list[str] = [_sort_of_byte(byte) for byte in range(256)]
        self.merges: list[str] = []
        for word in WORDS.split():
            self._build(" " + word)
        self.call = self._add("<tool_call>", "call")
        self.call_end = self._add("</tool_call>", "end of a call")
        self.padding = self._add("<|endoftext|>", "padding")
        self._add("<|im_start|>", "padding")
        self.turn_end = self._add("<|im_end|>", "end of a turn")

    def kinds(self) -> list[int]:
        """GGUF's kinds of token: 1 normal, 3 control, 4 defined by the user."""
        kinds = {"call": 4, "end of a call": 4, "padding": 3, "end of a turn": 3}
        return [kinds.get(sort, 1) for sort in self.sorts]

    def _build(self, word: str) -> None:
        spelled = [_BYTE_SPELLING[byte] for byte in word.encode()]
        so_far = spelled[0]
        for letter in spelled[1:]:
            if so_far + letter not in self.texts:
                self.merges.append(f"{so_far} {letter}")
                self._add(so_far + letter, "start of a word")
            so_far += letter
        self.sorts[self.texts.index(so_far)] = "word"

    def _add(self, text: str, sort: str) -> int:
        self.texts.append(text)
        self.sorts.append(sort)
        return len(self.texts) - 1


def _byte_spelling() -> list[str]:
    """GPT-2 writes each byte as one printable character: itself where it is one, else the next one above 255."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


_BYTE_SPELLING: Final = _byte_spelling()


def _sort_of_byte(byte: int) -> str:
    return "space" if byte < 0x21 else "character" if byte < 0x7F else "half a character"


# --- the weights --------------------------------------------------------------------------------------------

Matrix = tuple[list[int], "array[float]"]  # GGUF's dimensions (the width first), and the rows one after the other
CONSTANT, AFTER_CALL, AFTER_CALL_END, AFTER_CHARACTER = range(4)  # the channels that only the embedding writes


class _Noise:
    """Normal numbers, drawn from a pool that is long enough for no pattern to matter."""

    POOL: Final = 65_537

    def __init__(self) -> None:
        numbers = random.Random(7)
        self._pool = array("f", (numbers.gauss(0, 1) for _ in range(self.POOL)))
        self._starts = random.Random(11)

    def matrix(self, rows: int, width: int, scale: float) -> array[float]:
        start = self._starts.randrange(self.POOL)
        pool = array("f", (number * scale for number in self._pool[start:] + self._pool[:start]))
        return (pool * (rows * width // self.POOL + 1))[: rows * width]


def _tensors(model: Model, vocabulary: Vocabulary) -> dict[str, Matrix]:
    noise, width, deep = _Noise(), model.embedding, model.feed_forward
    scale = 1.2 / width**0.5
    ones = array("f", [1.0] * width)
    tensors: dict[str, Matrix] = {
        "token_embd.weight": _embedding(model, vocabulary, noise),
        "output_norm.weight": ([width], ones),
        "output.weight": _output(model, vocabulary, noise),
    }
    for layer in range(model.layers):
        block = f"blk.{layer}."
        for name in ("attn_norm", "ffn_norm"):
            tensors[f"{block}{name}.weight"] = ([width], ones)
        for name, rows, columns in (
            ("attn_q", width, width), ("attn_k", width, width), ("attn_v", width, width), ("attn_output", width, width),
            ("ffn_gate", deep, width), ("ffn_up", deep, width), ("ffn_down", width, deep),
        ):  # fmt: skip
            weights = noise.matrix(rows, columns, scale)
            if name in ("attn_output", "ffn_down"):  # what a block adds leaves the reserved channels alone
                weights[: 4 * columns] = array("f", [0.0] * (4 * columns))
            tensors[f"{block}{name}.weight"] = ([columns, rows], weights)
    return tensors


def _strength(model: Model) -> float:
    """Normalisation divides by more where there are more channels; the reserved ones make up for it."""
    return float((model.embedding / 64) ** 0.5)


def _embedding(model: Model, vocabulary: Vocabulary, noise: _Noise) -> Matrix:
    width, count, said = model.embedding, len(vocabulary.texts), 8.0 * _strength(model)
    weights = noise.matrix(count, width, 1.0)
    weights[CONSTANT::width] = array("f", [said] * count)
    for channel in (AFTER_CALL, AFTER_CALL_END, AFTER_CHARACTER):
        weights[channel::width] = array("f", [0.0] * count)
    weights[vocabulary.call * width + AFTER_CALL] = said
    weights[vocabulary.call_end * width + AFTER_CALL_END] = said
    for character in range(0x20, 0x7F):
        weights[character * width + AFTER_CHARACTER] = said
    return [width, count], weights


def _output(model: Model, vocabulary: Vocabulary, noise: _Noise) -> Matrix:
    width, count, strength = model.embedding, len(vocabulary.texts), _strength(model)
    bias = {**BIAS, "end of a turn": model.end_bias, "call": model.call_bias}
    weights = noise.matrix(count, width, 0.35 / strength)
    weights[CONSTANT::width] = array("f", [bias[sort] / strength for sort in vocabulary.sorts])
    for channel in (AFTER_CALL, AFTER_CALL_END, AFTER_CHARACTER):
        weights[channel::width] = array("f", [0.0] * count)
    weights[ord("\n") * width + AFTER_CALL] = FOLLOWS / strength
    weights[vocabulary.turn_end * width + AFTER_CALL_END] = FOLLOWS / strength
    weights[ord('"') * width + AFTER_CHARACTER] = FOLLOWS / strength
    return [width, count], weights


# --- the file -----------------------------------------------------------------------------------------------

U32, F32, BOOL, STRING, ARRAY, I32 = 4, 6, 7, 8, 9, 5  # GGUF's numbers of its value types

Metadata = dict[str, tuple[int, object]]


def _metadata(model: Model, vocabulary: Vocabulary) -> Metadata:
    return {
        "general.architecture": (STRING, "llama"),
        "general.name": (STRING, "tiny-random"),
        "general.file_type": (U32, 0),
        "llama.context_length": (U32, CONTEXT_TOKENS),
        "llama.embedding_length": (U32, model.embedding),
        "llama.block_count": (U32, model.layers),
        "llama.feed_forward_length": (U32, model.feed_forward),
        "llama.attention.head_count": (U32, model.heads),
        "llama.attention.head_count_kv": (U32, model.heads),
        "llama.attention.layer_norm_rms_epsilon": (F32, 1e-5),
        "llama.rope.dimension_count": (U32, model.embedding // model.heads),
        "llama.vocab_size": (U32, len(vocabulary.texts)),
        "tokenizer.ggml.model": (STRING, "gpt2"),
        "tokenizer.ggml.pre": (STRING, "gpt-2"),
        "tokenizer.ggml.tokens": (ARRAY, (STRING, vocabulary.texts)),
        "tokenizer.ggml.token_type": (ARRAY, (I32, vocabulary.kinds())),
        "tokenizer.ggml.merges": (ARRAY, (STRING, vocabulary.merges)),
        "tokenizer.ggml.eos_token_id": (U32, vocabulary.turn_end),
        "tokenizer.ggml.bos_token_id": (U32, vocabulary.padding),
        "tokenizer.ggml.padding_token_id": (U32, vocabulary.padding),
        "tokenizer.ggml.add_bos_token": (BOOL, False),
        "tokenizer.chat_template": (STRING, CHAT_TEMPLATE.read_text(encoding="utf-8")),
    }


def _gguf(metadata: Metadata, tensors: dict[str, Matrix]) -> bytes:
    out = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
    for key, (kind, value) in metadata.items():
        out += _value(STRING, key) + struct.pack("<I", kind) + _value(kind, value)
    at = 0
    for name, (dimensions, weights) in tensors.items():
        out += _value(STRING, name) + struct.pack("<I", len(dimensions))
        out += struct.pack(f"<{len(dimensions)}QIQ", *dimensions, 0, at)
        at += _padded(len(weights) * 4)
    out += bytes(_padded(len(out)) - len(out))
    for _, weights in tensors.values():
        out += weights.tobytes()  # floats of this machine, which is taken to be a little-endian one
        out += bytes(_padded(len(out)) - len(out))
    return bytes(out)


def _padded(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT


def _value(kind: int, value: object) -> bytes:
    if kind == STRING:
        raw = str(value).encode()
        return struct.pack("<Q", len(raw)) + raw
    if kind == ARRAY:
        assert isinstance(value, tuple)
        inner, items = value
        return struct.pack("<IQ", inner, len(items)) + b"".join(_value(inner, item) for item in items)
    return struct.pack({U32: "<I", F32: "<f", BOOL: "<?", I32: "<i"}[kind], value)
