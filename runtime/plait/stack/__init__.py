"""A whole Plait stack on this machine: prefill group, decode workers and router as one supervised family.

`plan` decides what runs (pure), `supervise` runs it and ends all of it, whatever happens.
"""
