"""Bodies that a router can tell are wrong, in well-formed HTTP: the connection stays usable."""

from __future__ import annotations

import json

from tests.router.conformance.cases.case import CHAT, COMPLETIONS, GENERATE, Case
from tests.router.conformance.wire import request

_DEEP = 100_000


def _bad(body: bytes | str, *says: str, path: str = CHAT, param: str | None = None) -> Case:
    raw = body if isinstance(body, bytes) else body.encode()
    code = "invalid_json" if param is None else None
    return Case(request("POST", path, raw), (400,), "usable", param, code, says)


def _owned(body: str | bytes, param: str, path: str = CHAT) -> Case:
    return _bad(body, param, path=path, param=param)


NOT_JSON = {
    "empty": _bad(""),
    "white space": _bad(" \r\n\t"),
    "words": _bad("hello"),
    "cut off": _bad('{"messages":['),
    "cut off in a string": _bad('{"messages":"abc'),
    "unbalanced": _bad('{"messages":[}'),
    "single quotes": _bad("{'messages':[]}"),
    "comma at the end": _bad('{"messages":[],}'),
    "comment": _bad('{"messages":[]/* none */}'),
    "words after": _bad('{"messages":[]} x'),
    "two objects": _bad('{"messages":[]}{"messages":[]}'),
    "names without quotes": _bad("{messages:[]}"),
    "number as a name": _bad('{1:"x"}'),
    "form": _bad("model=tiny&prompt=x", path=COMPLETIONS),
    "nan": _bad('{"messages":[],"temperature":NaN}'),
    "infinity": _bad('{"messages":[],"temperature":-Infinity}'),
    "hexadecimal": _bad('{"messages":[],"seed":0x10}'),
    "leading zero": _bad('{"messages":[],"seed":012}'),
    "plus": _bad('{"messages":[],"seed":+1}'),
    "control in a string": _bad(b'{"messages":[],"x":"a\x01b"}'),
    "null byte in a string": _bad(b'{"messages":[],"x":"a\x00b"}'),
    "null byte behind": _bad(b'{"messages":[]}\x00'),
    "bad escape": _bad(r'{"messages":[],"x":"\x41"}'),
    "lone surrogate": _bad(r'{"messages":[],"x":"\ud800"}'),
    "surrogates reversed": _bad(r'{"messages":[],"x":"\udc00\ud800"}'),
    "invalid utf-8": _bad(b'{"messages":[],"x":"\xff\xfe"}'),
    "overlong utf-8": _bad(b'{"messages":[],"x":"\xc0\xaf"}'),
    "surrogate in utf-8": _bad(b'{"messages":[],"x":"\xed\xa0\x80"}'),
    "latin-1": _bad('{"messages":[],"x":"ü"}'.encode("latin-1")),
    "utf-16": _bad('{"messages":[]}'.encode("utf-16")),
    "byte order mark": _bad(b'\xef\xbb\xbf{"messages":[]}'),
    "gzip without saying so": _bad(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xab\xae\x05\x00"),
    "brackets 100,000 deep": _bad('{"messages":' + "[" * _DEEP + "]" * _DEEP + "}"),
    "brackets never closed": _bad("[" * _DEEP),
    "objects 20,000 deep": _bad('{"a":' * 20_000 + "1" + "}" * 20_000),
}

NOT_AN_OBJECT = {
    "list": _bad('[{"messages":[]}]', "object"),
    "string": _bad('"messages"', "object"),
    "number": _bad("17", "object"),
    "big number": _bad(str(2**70), "object"),
    "true": _bad("true", "object"),
    "null": _bad("null", "object", path=GENERATE),
}

# All of one list: plait.router.samples.fields.
_OWNED = (
    "rid",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "bootstrap_pair_key",
    "bootstrap_something_new",
    "routed_dp_rank",
    "disagg_prefill_dp_rank",
    "data_parallel_rank",
    "pd_rebootstrap_room",
)
OWNED_FIELDS = {
    **{f"{name}": _owned(json.dumps({"messages": [], name: 1}), name) for name in _OWNED},
    **{f"{name} on {path}": _owned(json.dumps({name: None}), name, path) for name in _OWNED[:4]
       for path in (COMPLETIONS, GENERATE)},
    "room twice": _owned('{"bootstrap_room":1,"messages":[],"bootstrap_room":2}', "bootstrap_room"),
    "first of two": _owned('{"rid":"a","messages":[],"rid":null}', "rid"),
    "null": _owned('{"messages":[],"bootstrap_room":null}', "bootstrap_room"),
    "in escapes": _owned(r'{"messages":[],"\u0072id":"x"}', "rid"),
    "in escapes of each letter": _owned(
        '{"' + "".join(f"\\u{ord(c):04x}" for c in "bootstrap_room") + '":1}', "bootstrap_room"
    ),
    "last of many": _owned("{" + "".join(f'"f{i}":0,' for i in range(5000)) + '"rid":1}', "rid"),
}  # fmt: skip

VALUES = {
    "n a string": _bad('{"messages":[],"n":"3"}', "n", param="n"),
    "n a fraction": _bad('{"messages":[],"n":1.5}', "n", param="n"),
    "n a float": _bad('{"messages":[],"n":2.0}', "n", param="n"),
    "n zero": _bad('{"messages":[],"n":0}', "n", param="n"),
    "n negative": _bad('{"prompt":"x","n":-1}', "n", param="n", path=COMPLETIONS),
    "n true": _bad('{"messages":[],"n":true}', "n", param="n"),
    "n a list": _bad('{"messages":[],"n":[2]}', "n", param="n"),
    "n huge": _bad(f'{{"messages":[],"n":{2**70}}}', "n", param="n"),
    "n beyond the limit": _bad('{"messages":[],"n":100000}', "n", param="n"),
    "n of generate": _bad(
        '{"text":"x","sampling_params":{"n":"2"}}', "n", param="sampling_params.n", path=GENERATE
    ),
    "n differs in one batch": _bad(
        '{"text":["x","y"],"sampling_params":[{"n":2},{"n":3}]}',
        "n",
        param="sampling_params.n",
        path=GENERATE,
    ),
    "best_of": _bad('{"prompt":"x","best_of":3}', "best_of", param="best_of", path=COMPLETIONS),
    "prompts beyond the limit": _bad(
        json.dumps({"prompt": ["x"] * 20_000}), "prompt", param="prompt", path=COMPLETIONS
    ),
    "texts beyond the limit": _bad(json.dumps({"text": ["x"] * 20_000}), "text", param="text", path=GENERATE),
    "ids beyond the limit": _bad(
        json.dumps({"input_ids": [[1]] * 20_000}), "input_ids", param="input_ids", path=GENERATE
    ),
    "number beyond all": _bad('{"messages":[],"x":1e400}'),
}

CASES: dict[str, Case] = {
    f"{group}: {name}": case
    for group, table in (
        ("not JSON", NOT_JSON),
        ("not an object", NOT_AN_OBJECT),
        ("the router's field", OWNED_FIELDS),
        ("value", VALUES),
    )
    for name, case in table.items()
}
