"""A stand-in for transformers: finds the config.json of a hub repository in a folder of the image."""
