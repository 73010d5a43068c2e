"""Encodes values as msgpack, with tensors separate from the header. Preserves types exactly;
refuses a value outside the vocabulary, with its path.

Must not know sockets: the transport moves the bytes of the tensors and returns them as flat
buffers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from katz_graph.executor.transport.vocabulary import REASONS, VOCABULARY, sent_fields
from katz_graph.ipc.packing import UNREADABLE, pack, unpack

_PLAIN = frozenset({type(None), bool, int, float, str, bytes})
_SEQUENCES: Mapping[type, str] = MappingProxyType(
    {list: "list", tuple: "tuple", set: "set", frozenset: "frozenset", torch.Size: "size"}
)
_SEQUENCE_TYPES: Mapping[str, type] = MappingProxyType(
    {tag: kind for kind, tag in _SEQUENCES.items()}
)
_DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {str(one): one for one in vars(torch).values() if isinstance(one, torch.dtype)}
)


class Closed(Exception):
    """Reports that the peer disconnected or that this side was closed."""


class ProtocolError(Exception):
    """Reports invalid bytes; the connection is no longer usable."""


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """Holds an encoded value. The header contains everything except tensor data. `tensors` has each
    tensor once, with its axes permuted into memory order.
    """

    header: bytes
    tensors: tuple[Tensor, ...]


def encode(value: Any) -> Encoded:
    """Encodes a value. Raises TypeError with the type and path of a value that cannot be sent."""
    encoder = _Encoder()
    header = pack(encoder.pack(value))
    return Encoded(header, tuple(encoder.tensors))


def decode(header: bytes | memoryview, buffers: Sequence[Tensor]) -> Any:
    """Decodes a value. Its tensors are views of `buffers`, flat uint8 tensors with the bytes of
    `Encoded.tensors` (see `as_bytes`).

    Raises ProtocolError if the header is damaged or does not fit the buffers.
    """
    try:
        return _Decoder(buffers).unpack(unpack(header))
    except ProtocolError:
        raise
    except (*UNREADABLE, LookupError, AttributeError, RecursionError, RuntimeError) as error:
        raise ProtocolError(f"a message cannot be read: {type(error).__name__}: {error}") from None


def as_bytes(tensor: Tensor) -> Tensor:
    """Returns a tensor's elements in order as flat uint8, without a copy if it is contiguous."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)


class _Encoder:
    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self._numbers: dict[int, int] = {}  # id of a tensor -> its index
        self._path: list[str] = []

    def pack(self, value: Any) -> Any:
        """Packs scalars unchanged and everything else as a list that begins with a type tag."""
        kind: type = type(value)
        if kind in _PLAIN:
            return value
        if kind in _SEQUENCES:
            return [
                _SEQUENCES[kind],
                *(self._inside(f"[{place}]", item) for place, item in enumerate(value)),
            ]
        if kind is dict:
            packed: list[Any] = ["dict"]
            for key, item in value.items():
                packed += [self._inside(f"[key {key!r}]", key), self._inside(f"[{key!r}]", item)]
            return packed
        if isinstance(value, Tensor):
            return self._tensor(value)
        if kind is torch.dtype:
            return ["dtype", str(value)]
        if VOCABULARY.get(kind.__name__) is kind:
            return [
                "data",
                kind.__name__,
                *(self._inside(f".{name}", getattr(value, name)) for name in sent_fields(kind)),
            ]
        raise self._refusal(
            kind,
            REASONS.get(kind, "it is not a class that may be sent between processes"),
        )

    def _inside(self, place: str, value: Any) -> Any:
        self._path.append(place)
        packed = self.pack(value)
        self._path.pop()
        return packed

    def _tensor(self, tensor: Tensor) -> list[Any]:
        if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
            raise self._refusal(type(tensor), "only dense tensors with data can be sent")
        number, order = self._numbers.setdefault(id(tensor), len(self.tensors)), _order(tensor)
        if number == len(self.tensors):
            self.tensors.append(tensor.detach().permute(order))
        return ["tensor", number, str(tensor.dtype), list(tensor.shape), order]

    def _refusal(self, kind: type, reason: str) -> TypeError:
        return TypeError(
            f"cannot send a {kind.__module__}.{kind.__qualname__} at "
            f"value{''.join(self._path)}: {reason}"
        )


class _Decoder:
    def __init__(self, buffers: Sequence[Tensor]) -> None:
        self._buffers = buffers

    def unpack(self, packed: Any) -> Any:
        if type(packed) is not list:
            return packed
        tag, rest = packed[0], packed[1:]
        if tag in _SEQUENCE_TYPES:
            return _SEQUENCE_TYPES[tag](self.unpack(item) for item in rest)
        match tag:
            case "dict":
                return self._dict(rest)
            case "tensor":
                return self._tensor(rest)
            case "data":
                return self._data(rest)
            case "dtype":
                return _DTYPES[rest[0]]
        raise ProtocolError(f"a message contains the unknown type {tag!r}")

    def _dict(self, rest: list[Any]) -> dict[Any, Any]:
        return {
            self.unpack(key): self.unpack(item)
            for key, item in zip(rest[::2], rest[1::2], strict=True)
        }

    def _data(self, rest: list[Any]) -> Any:
        kind = VOCABULARY[rest[0]]
        return kind(**dict(zip(sent_fields(kind), map(self.unpack, rest[1:]), strict=True)))

    def _tensor(self, rest: list[Any]) -> Tensor:
        number, name, shape, order = rest
        dtype, buffer = _DTYPES[name], self._buffers[number]
        if min(shape, default=0) < 0 or prod(shape) * dtype.itemsize != buffer.numel():
            raise ProtocolError(
                f"a message has a wrong number of bytes for a tensor {name} {shape}: "
                f"{buffer.numel()}"
            )
        if sorted(order) != list(range(len(shape))):
            raise ProtocolError(f"a message has a tensor {shape} with invalid axis order {order}")
        lying: Tensor = buffer.view(dtype).view([shape[axis] for axis in order])
        return lying.permute([order.index(axis) for axis in range(len(shape))])


def _order(tensor: Tensor) -> list[int]:
    """Returns the axes of a tensor in memory order, outermost first. Returns the logical order if
    the tensor has gaps or overlapping elements.
    """
    counted = list(range(tensor.ndim))
    order = sorted(counted, key=lambda axis: tensor.stride()[axis], reverse=True)
    dense = not tensor.is_contiguous() and tensor.permute(order).is_contiguous()
    return order if dense else counted
