"""The protocol as bytes: protobuf messages and padded frames."""
