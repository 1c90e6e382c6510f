"""The files in which TensorBoard and W&B keep what a training logs. Both are records of protocol
buffers, of which only the fields that are read are named here, so neither program is needed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, BinaryIO

import numpy as np

# Message -> field -> (number, type), where a list is a repeated field and a capital a message.
_FIELDS: dict[str, dict[str, tuple[int, str | list[str]]]] = {
    "Event": {"wall_time": (1, "double"), "step": (2, "int64"), "summary": (5, "Summary")},
    "Summary": {"value": (1, ["Value"])},
    "Value": {
        "tag": (1, "string"), "simple_value": (2, "float"), "tensor": (8, "Tensor"),
        "metadata": (9, "Metadata"),
    },
    "Tensor": {
        "dtype": (1, "int64"), "tensor_content": (4, "bytes"), "float_val": (5, ["float"]),
        "double_val": (6, ["double"]),
    },
    "Metadata": {"plugin_data": (1, "Plugin")},
    "Plugin": {"plugin_name": (1, "string"), "content": (2, "bytes")},
    "Hyperparameters": {"session_start_info": (3, "Start")},
    "Start": {"hparams": (1, ["Setting"])},
    "Setting": {"key": (1, "string"), "value": (2, "Constant")},
    "Constant": {
        "number_value": (2, "double"), "string_value": (3, "string"), "bool_value": (4, "bool"),
    },
    "Record": {
        "history": (2, "History"), "config": (5, "Config"), "run": (17, "Run"),
        "exit": (18, "Exit"),
    },
    "History": {"item": (1, ["Item"]), "step": (2, "Step")},
    "Step": {"num": (1, "int64")},
    "Item": {"key": (1, "string"), "nested_key": (2, ["string"]), "value_json": (16, "string")},
    "Run": {"config": (4, "Config")},
    "Config": {"update": (1, ["Item"])},
    "Exit": {"exit_code": (1, "int64")},
}  # fmt: skip


@cache
def _messages() -> dict[str, Any]:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = {"double": 1, "float": 2, "int64": 3, "bool": 8, "string": 9, "bytes": 12}
    file = descriptor_pb2.FileDescriptorProto(name="outside.proto", package="outside")
    for message, entries in _FIELDS.items():
        made = file.message_type.add(name=message)
        for name, (number, kind) in entries.items():
            one = kind[0] if isinstance(kind, list) else kind
            field = made.field.add(name=name, number=number, label=3 if one is not kind else 1)
            field.type = kinds.get(one, 11)
            if one not in kinds:
                field.type_name = f".outside.{one}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"outside.{name}"))
        for name in _FIELDS
    }


def message(kind: str, content: bytes) -> Any:
    """Raises `ValueError` for bytes that are no such message."""
    from google.protobuf.message import DecodeError

    try:
        return _messages()[kind].FromString(content)
    except DecodeError:
        raise ValueError(f"holds something that is no {kind.lower()}") from None


def events(file: BinaryIO, size: int) -> Iterator[Any]:
    """The events of TensorBoard's file of `size` bytes from here on, as far as they are whole."""
    # A record is its length, a checksum, itself and another checksum.
    while len(head := file.read(12)) == 12:
        length = int.from_bytes(head[:8], "little")
        if file.tell() + length + 4 > size:
            break
        yield message("Event", file.read(length + 4)[:-4])


def scalars(event: Any) -> Iterator[tuple[str, float]]:
    """The numbers of an event by their tags, as torch and as TensorFlow write them."""
    for value in event.summary.value:
        if value.HasField("simple_value"):
            # As it was meant: 0.6 in 32 bits is more than 0.6, and would pass that goal.
            yield value.tag, float(str(np.float32(value.simple_value)))
            continue
        tensor = value.tensor
        numbers = [*tensor.float_val, *tensor.double_val]
        width = {1: 4, 2: 8}.get(tensor.dtype, 0)
        if tensor.tensor_content and width and len(tensor.tensor_content) % width == 0:
            numbers = [*np.frombuffer(tensor.tensor_content, f"<f{width}")]
        if len(numbers) == 1:
            yield value.tag, float(str((np.float32 if width == 4 else float)(numbers[0])))


def hyperparameters(event: Any) -> dict[str, Any]:
    """The settings that an event has for TensorBoard's table of hyperparameters."""
    found = {}
    for value in event.summary.value:
        plugin = value.metadata.plugin_data
        if plugin.plugin_name == "hparams":
            for each in message("Hyperparameters", plugin.content).session_start_info.hparams:
                for _, constant in each.value.ListFields():
                    found[each.key] = constant
    return found


def wandb_records(content: bytes) -> Iterator[Any]:
    """The records of W&B's file. It ends before one that is not whole."""
    at, parts = 7, b""  # after the header of the file
    while at + 7 <= len(content):
        if 0 < (left := -at % 32768) < 7:  # the rest of a block is too short for a record
            at += left
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        if at + 7 + length > len(content):
            return
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part; 2 and 3 are the first and the middle ones
            yield message("Record", parts)
            parts = b""
