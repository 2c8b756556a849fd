"""Files as `llama-perplexity --kl-divergence-base` writes them, by the words of its source."""

import io
import struct

import numpy as np


def kld_bytes(ids: np.ndarray, logits: np.ndarray) -> bytes:
    """A whole file: ids (chunk, place) and logits (chunk, row, vocabulary)."""
    n_chunk, chunk = ids.shape
    n_vocab = logits.shape[-1]
    assert logits.shape[:2] == (n_chunk, chunk - 1 - chunk // 2)
    out = io.BytesIO()
    out.write(b"_logits_" + struct.pack("<iii", chunk, n_vocab, n_chunk))
    out.write(ids.astype("<i4").tobytes())
    for row in logits.reshape(-1, n_vocab):
        scale, lowest, codes = encoded(row.astype(np.float32))
        out.write(row_bytes(scale, lowest, codes))
    return out.getvalue()


def row_bytes(scale: float, lowest: float, codes: np.ndarray) -> bytes:
    """One row; an odd vocabulary has a word of anything after it."""
    pad = b"\xab\xcd" if codes.size % 2 else b""
    return struct.pack("<ff", scale, lowest) + codes.astype("<u2").tobytes() + pad


def encoded(logits: np.ndarray) -> tuple[np.float32, np.float32, np.ndarray]:
    """Scale, offset and codes of one law."""
    largest = logits.max()
    least = max(logits.min(), np.float32(largest - np.float32(16)))
    total = np.float32(np.log(np.exp(logits - largest).astype(np.float64).sum()))
    scale = np.float32((largest - least) / np.float32(65535))
    lowest = np.float32(least - largest - total)
    codes = np.zeros(logits.size, np.uint16)
    if scale > 0:
        above = logits > least
        codes[above] = np.rint((logits[above] - least) / scale).astype(np.uint16)
    return scale, lowest, codes
