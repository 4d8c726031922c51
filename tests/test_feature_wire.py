"""Rows of hidden states on the wire: they survive it, and what cannot be is refused by name.

Run: pytest tests/test_feature_wire.py
"""

from __future__ import annotations

import pytest
import torch

from edge_client.drafters.base import Drafter
from edge_client.drafters.none import NoneDrafter
from opensled import codec
from opensled.errors import InvalidRequest, ProtocolError
from opensled.features import MAX_BYTES, NEWEST, FeatureRows, check_rows, layers_of, most_rows
from opensled.messages import Open, SamplingParams, Verdict
from opensled.v1 import verify_pb2 as pb
from verify_server.engine.torch_scores import rounded

ROWS = FeatureRows(7, 2, (0.5, 0.25, 0.0, 1.0), bytes((1, 255, 2, 254, 0, 0, 127, 129)), (0, 4))


def test_rows_survive_the_wire() -> None:
    verdict = Verdict(7, (5, 6), features=(ROWS, ROWS._replace(first=20)))
    assert codec.server_message(codec.server_bytes(verdict)) == verdict
    message = Open((1,), SamplingParams(max_tokens=1), features=(0, 4))
    assert codec.client_message(codec.encode_client(message).SerializeToString()) == message
    assert ROWS.states().tolist() == [[[0.5, -0.5], [0.5, -0.5]], [[0.0, 0.0], [127.0, -127.0]]]


def test_how_many_rows_are_wanted_survives_the_wire_and_has_known_bytes() -> None:
    plain = Open((1,), SamplingParams(max_tokens=1), features=(4,))
    newest = Open((1,), SamplingParams(max_tokens=1), features=(4,), feature_rows=1)
    sent = codec.encode_client(newest).SerializeToString()
    assert codec.client_message(sent) == newest
    assert codec.encode_client(newest).open.SerializeToString().endswith(bytes.fromhex("a00101"))
    assert not codec.encode_client(plain).open.feature_rows, "what is not said takes no bytes"
    for rows in (NEWEST + 1, 2**32 - 1):
        message = codec.encode_client(plain)
        message.open.feature_rows = rows
        with pytest.raises(InvalidRequest, match="from 0 to 128") as caught:
            codec.client_message(message.SerializeToString())
        assert caught.value.field == "feature_rows"


def test_one_row_travels_in_a_few_bytes_more_than_it_has() -> None:
    row = FeatureRows(900, 256, (0.5,), bytes(256), (5,))
    with_row, plain = (codec.server_bytes(Verdict(901, (5, 6), features=rows)) for rows in ((row,), ()))
    assert len(with_row) - len(plain) == 256 + 4 + 34


def test_the_bytes_of_rows_are_known() -> None:
    sent = codec.server_bytes(Verdict(7, (5, 6), features=(ROWS,)))
    assert sent == bytes.fromhex(
        "1244080712020506423c"
        "0a1168696464656e3a302c68696464656e3a34"
        "1204696e7438" "1a03020202" "220801ff02fe00007f81" "2807" "32100000003f0000803e000000000000803f"
    )  # fmt: skip


FEATURE = pb.Feature(
    name="hidden:0,hidden:4", dtype="int8", shape=(2, 2, 2), data=bytes(8), first=7, scales=(1.0,) * 4
)


def changed(**fields: object) -> pb.Feature:
    feature = pb.Feature()
    feature.CopyFrom(FEATURE)
    for name, value in fields.items():
        if isinstance(value, tuple):
            del getattr(feature, name)[:]
            getattr(feature, name).extend(value)
        else:
            setattr(feature, name, value)
    return feature


@pytest.mark.parametrize(
    "features",
    [
        [changed(name="hidden:0")],
        [changed(name="hidden:0,hidden:0")],
        [changed(name="")],
        [changed(dtype="float16")],
        [changed(shape=(2, 2))],
        [changed(shape=(0, 2, 2))],
        [changed(shape=(2**31, 2, 2**31))],
        [changed(data=b"")],
        [changed(scales=(1.0,) * 3)],
        [changed(scales=(1.0, 1.0, 1.0, float("nan")))],
        [changed(scales=(1.0, 1.0, 1.0, -1.0))],
        [changed(scales=(1.0, 1.0, 1.0, 1e31))],
        [changed(first=2**32 - 1)],
        [FEATURE, FEATURE],
        [changed(first=7 + 2 * place) for place in range(NEWEST)],
    ],
)
def test_rows_that_cannot_be_are_the_servers_error(features: list[pb.Feature]) -> None:
    message = pb.ServerMessage(verdict=pb.Verdict(base=1, tokens=[2], features=features))
    with pytest.raises(ProtocolError, match=r"feature|scale|hidden state"):
        codec.decode_server(message)


def test_rows_of_too_many_bytes_are_refused() -> None:
    size = MAX_BYTES // 2
    with pytest.raises(InvalidRequest, match="bytes of features"):
        check_rows([FeatureRows(0, size, (1.0, 1.0, 1.0), bytes(3 * size), (0, 1, 2))])
    assert most_rows(4, 64) == NEWEST and most_rows(8, 8192) * 8 * (8192 + 4) <= MAX_BYTES


@pytest.mark.parametrize(
    "names", [["hidden:-1"], ["hidden:"], ["logits"], ["hidden:0"] * 2, ["hidden:1"] * 9]
)
def test_names_that_are_none_are_refused(names: list[str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        layers_of(names)
    assert caught.value.field == "features"


def test_states_are_rounded_by_row() -> None:
    states = torch.tensor([[[1.0, -2.0]], [[0.0, 0.0]], [[float("nan"), float("inf")]]])
    data, scales = rounded(states)
    assert torch.allclose(data * scales[..., None], states.nan_to_num(0.0, 0.0, 0.0), atol=0.02)


def test_drafters_that_read_none_are_given_none() -> None:
    assert Drafter.features(NoneDrafter(), ROWS) is None
