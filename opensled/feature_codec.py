"""Converts rows of hidden states between our messages and protobuf's. A part of codec.py."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from opensled.bounds import MAX_POSITIONS
from opensled.errors import InvalidRequest
from opensled.features import INT8, LARGEST_SCALE, NEWEST, FeatureRows, check_rows, layers_of, names_of
from opensled.v1 import verify_pb2 as pb


def encode_rows(rows: FeatureRows) -> pb.Feature:
    return pb.Feature(
        name=",".join(names_of(rows.layers)),
        dtype=INT8,
        shape=(len(rows.positions), len(rows.layers), rows.size),
        data=rows.data,
        first=rows.first,
        scales=rows.scales,
    )


def decode_features(messages: Sequence[Any]) -> tuple[FeatureRows, ...]:
    """Those of one verdict. Raises InvalidRequest, naming the field, for rows that cannot be."""
    if len(messages) > NEWEST:
        raise InvalidRequest(f"{len(messages)} runs of features: at most {NEWEST}", "features")
    found = tuple([_decode_rows(message) for message in messages])
    check_rows(found)
    return found


def _decode_rows(message: Any) -> FeatureRows:
    names, shape, scales = message.name.split(",", NEWEST), tuple(message.shape), tuple(message.scales)
    layers = layers_of(names)
    if message.dtype != INT8 or len(shape) != 3 or min(shape) < 1 or shape[1] != len(layers):
        raise InvalidRequest(f"features of {message.dtype[:20]!r}, shape {list(shape)[:4]}", "features")
    if len(scales) != shape[0] * shape[1] or len(message.data) != math.prod(shape):
        raise InvalidRequest("features whose data or scales do not fit their shape", "features")
    if not all(0 <= scale <= LARGEST_SCALE for scale in scales):
        raise InvalidRequest("a scale of features is no number that one can have", "features")
    if message.first + shape[0] > MAX_POSITIONS:
        raise InvalidRequest(f"features behind position {MAX_POSITIONS}", "features")
    return FeatureRows(message.first, shape[2], scales, message.data, layers)
