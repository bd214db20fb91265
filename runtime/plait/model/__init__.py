"""Test models: random weights in the GLM-5 shape, with a tokenizer and a chat template made here.

`plait.model.write.write_tiny` is the way in; nothing here needs the engine.
"""
