"""Images for the real node, made from this checkout without a container builder: control, runtime, engine."""
