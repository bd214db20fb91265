"""The objects that a deployment consists of, each built as a manifest by a pure function."""
