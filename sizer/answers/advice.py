"""Small helpers for model-config code."""

from shapes.device import Device, load_device
from shapes.dtypes import dtype_bytes, next_multiple
from shapes.errors import positive_int

#: Bytes a row should be a multiple of on A100 and every later NVIDIA data-centre GPU.
ALIGNMENT_BYTES = 128


def round_to_alignment(
    value: int, *, dtype: str = "bf16", device: str | Device | None = None, multiple: int | None = None, tp: int = 1
) -> int:
    """``value`` rounded up so that each of ``tp`` shards is aligned.

    To ``multiple`` if given, else to the device's requirement for ``dtype`` (no device: 128 bytes, A100 and later).
    Raises InputError for a size that is no positive integer and for a ``dtype`` that the device does not know.

    >>> round_to_alignment(10922)
    10944
    >>> round_to_alignment(10922, dtype="fp8")
    11008
    """
    positive_int(value, "value")
    positive_int(tp, "tp")
    if multiple is None:
        multiple = ALIGNMENT_BYTES // dtype_bytes(dtype)
        if device is not None:
            target = load_device(device)
            target.peak(dtype)  # a type the device does not know has no requirement, which is not "any width will do"
            multiple = target.alignment_elements(dtype)
    return int(next_multiple(value, positive_int(multiple, "multiple") * tp))


def pad_vocab(vocab: int, tp: int = 1, device: str | Device | None = None, *, dtype: str = "bf16") -> int:
    """The vocabulary padded so that each of ``tp`` shards of the embedding and the head is aligned.

    >>> pad_vocab(50257)
    50304
    >>> pad_vocab(50257, tp=8)
    50688
    """
    return round_to_alignment(vocab, dtype=dtype, device=device, tp=tp)
