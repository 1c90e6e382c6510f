"""Token files: one-dimensional `.npy` files of uint16 or uint32. They are memory-mapped, not read.

They are made from plain text, with a tokenizer: SentencePiece's byte pair encoding. No text is
lost: the text is not normalised, and characters that are in no piece become bytes.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from orchestrator.records import BadInput, corrupt, unreadable

VOCABULARY = 32_000
"""Number of pieces of a tokenizer."""
SAMPLE = 1_000_000
"""Number of lines that a tokenizer is learned from, drawn at random from all lines."""
LINES_AT_ONCE = 10_000
"""Number of lines that are encoded at once."""
CHECKED = 2**16
"""Number of tokens that are compared with the vocabulary when a file is opened: the first."""

Tokens = NDArray[Any]


def make_tokens(folder: Path, target: Path) -> None:
    """Writes `train.npy`, `val.npy` and, if there is text for it, `test.npy` into `target`, from
    the lines below `folder/text`. Also writes the tokenizer: a copy of `folder/tokenizer.model` if
    there is one, else a new one."""
    text = folder / "text"
    splits = ["train", "val", *(["test"] if (text / "test").is_dir() else [])]
    files = {split: _files(text / split) for split in splits}
    model = folder / "tokenizer.model"
    content = model.read_bytes() if model.is_file() else _learned(files["train"])
    tokenizer = _tokenizer(content, model)
    (target / model.name).write_bytes(content)
    for split, paths in files.items():
        _write(target / f"{split}.npy", tokenizer, _lines(paths))


def _files(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.glob("[!.]*") if path.is_file())
    if not found:
        raise BadInput(
            f"There is no text in {folder}: put files of a sentence or paragraph per line there, "
            f"gzipped (.gz) or not.",
            code="empty",
        )
    return found


def _lines(paths: Sequence[Path]) -> Iterator[str]:
    """Yields the lines of all files that aren't empty."""
    for path in paths:
        try:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
                lines = io.TextIOWrapper(file, encoding="utf-8")
                yield from filter(None, (line.removesuffix("\n") for line in lines))
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
            raise unreadable(path, error) from None


def _learned(paths: Sequence[Path]) -> bytes:
    """Learns the model of a tokenizer of `VOCABULARY` pieces, or fewer if the text is short."""
    import sentencepiece

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(_sample(paths)),
            model_writer=model,
            model_type="bpe",
            vocab_size=VOCABULARY,
            hard_vocab_limit=False,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise corrupt(paths[0].parent, f"no tokenizer can be made of it: {error}") from None
    return model.getvalue()


def _sample(paths: Sequence[Path]) -> list[str]:
    """Draws `SAMPLE` lines. Every line has the same probability of being drawn."""
    rng = np.random.default_rng(0)
    sample: list[str] = []
    for count, line in enumerate(_lines(paths)):
        if count < SAMPLE:
            sample.append(line)
        elif (position := rng.integers(count + 1)) < SAMPLE:
            sample[position] = line
    return sample


def _tokenizer(content: bytes, path: Path) -> Any:
    import sentencepiece

    tokenizer = sentencepiece.SentencePieceProcessor()
    try:
        tokenizer.LoadFromSerializedProto(content)
    except RuntimeError as error:
        raise corrupt(path, f"it is no model of SentencePiece: {error}") from None
    if tokenizer.eos_id() < 0:
        raise corrupt(path, "it has no piece for the end of a sentence")
    return tokenizer


def _write(path: Path, tokenizer: Any, lines: Iterator[str]) -> None:
    kind = np.dtype(np.uint16 if tokenizer.get_piece_size() <= 2**16 else np.uint32)
    header = {"descr": kind.str, "fortran_order": False}
    count = 0
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {**header, "shape": (0,)})
        while chunk := list(islice(lines, LINES_AT_ONCE)):
            encoded = tokenizer.encode(chunk, add_eos=True)
            tokens = np.concatenate([np.array(line, kind) for line in encoded])
            file.write(tokens.tobytes())
            count += len(tokens)
        # The header is overwritten: NumPy pads headers so that any length fits.
        file.seek(0)
        np.lib.format.write_array_header_1_0(file, {**header, "shape": (count,)})


def read_tokens(path: Path, *, vocabulary: int) -> Tokens:
    """Returns the tokens in the file at `path`. Only the first `CHECKED` of them are compared with
    the vocabulary, so callers must check the tokens that they use."""
    try:
        tokens = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # a broken header makes NumPy raise nearly anything
        raise unreadable(path, error) from None
    if tokens.ndim != 1 or tokens.dtype not in (np.uint16, np.uint32):
        raise corrupt(
            path, f"it holds {tokens.ndim} dimensions of {tokens.dtype}, not 1 of uint16 or uint32"
        )
    announced, found = tokens.offset + tokens.nbytes, path.stat().st_size
    if announced != found:
        raise corrupt(path, f"its header announces {announced:,} bytes, not {found:,}")
    check_tokens(tokens[:CHECKED], vocabulary, path)
    return tokens


def check_tokens(tokens: Tokens, vocabulary: int, path: Path) -> None:
    largest = tokens.max(initial=0)
    if largest >= vocabulary:
        raise BadInput(
            f"A token of {path} is {largest:,}, not below {vocabulary:,}: set `vocabulary` higher.",
            code="wrong-value",
        )


def windows(tokens: Tokens, length: int, path: Path) -> Tokens:
    """Returns a view of `tokens` as rows of `length + 1` tokens. The last token of a row is the
    first of the next row, so each token is predicted once."""
    if len(tokens) <= length:
        raise BadInput(
            f"{path} must hold more than a window of {length} tokens for each split, but one has "
            f"{len(tokens)}.",
            code="too-few",
        )
    return sliding_window_view(tokens, length + 1)[::length]
