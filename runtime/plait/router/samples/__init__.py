"""Several samples of one prompt (n > 1): single-sample requests out of one, one answer out of theirs.

An engine gives all samples of a prompt, and the warm-up before them, the prompt's one bootstrap room
(SGLang's tokenizer_manager.py, `_handle_batch_request`), so the second would read or overwrite the first
one's transfer. The router therefore sends n requests of one sample each, every one with rooms of its own,
and puts the n answers or streams together as one stock engine would have: choices ordered by prompt, then
by sample; the prompt's tokens counted once.

`split` counts the samples and writes the single-sample body, `whole` merges answers, `streams` merges
streams, `usage` adds the counts up, `spans` finds values in JSON text so that all other bytes stay as they
are. `fields` lists what a client may not set.

Where the merge differs from one stock engine: a stock stream with n > 1 names each choice's own engine
request in `id`; here, as OpenAI documents it, all events of a stream share one `id` and one `created`.
"""
