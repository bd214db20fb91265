"""What runs in an engine's pod beside the engine: preflight, drain, inspect. Starts without torch or sglang.

The init container `runtime` copies the tree into an emptyDir (image of images/runtime, volume at /plait):

    /opt/plait/inject /plait            makes /plait/site, whole or not at all; PYTHONPATH=/plait/site

The init container `preflight` (the engine's own image and environment; the same GPUs and RDMA devices in
its limits, for devices are handed on to the engine; the contract's ConfigMap, the model and /dev/shm mounted
as for the engine; `terminationMessagePath` left at its default):

    python3 -m plait.pod.preflight --contract FILE --gpus N [--peer-access auto|required|off]
        [--rdma-device NAME]... [--shm-bytes N] [--deadline-s S] [--message FILE] -- ENGINE FLAGS

    --contract     JSON of `plait.contract.contract_file.ContractFile`, as the operator expects this engine
    --gpus         GPUs that the container must see, exactly; 0 on cpu (then no GPU check is made)
    --peer-access  required: every pair of GPUs must map each other's memory. auto (default): told, never
                   refused. off: not asked
    --rdma-device  a device that transfers use, may be given again; none: any active one will do. Not looked
                   at with mooncake_tcp
    --shm-bytes    least size of /dev/shm, default 0: not checked
    --deadline-s   for everything together, default 300; no single check can hang longer
    --message      where the verdict goes beside stdout, default /dev/termination-log
    ENGINE FLAGS   exactly what the engine container gives to `python3 -m plait.engine`: role, ranks, device
                   and transfer backend are read from them, and they are checked as at the engine's start

Exit status 0: the engine may start; 1: it may not; 2: wrong usage. The message is a
`plait.contract.verdict.Verdict` in all three cases.

preStop of the engine container (`exec`; terminationGracePeriodSeconds must exceed leave + deadline):

    python3 -m plait.pod.drain [--url http://127.0.0.1:30000] [--leave-s 5] [--quiet-s 2]
        [--deadline-s 120] [--log FILE]

    --url         the engine
    --leave-s     waited in any case, so that routers stop sending first
    --quiet-s     how long the engine must be seen idle
    --deadline-s  after the leave: goes by then, with requests or without
    --log         a file that each line is added to beside stderr, for example /proc/1/fd/1: what a preStop
                  prints is thrown away

Exit status 0: idle, or the engine is dead; 1: the deadline passed; 2: wrong usage. An engine with an API key
tells nobody else what it has to do: ENGINE_API_KEY, as for the router, must hold the key then.

The inspect Job (the engine's image, `runtime` injected before it, the model mounted; HF_TOKEN for a hub):

    python3 -m plait.pod.inspect --model FOLDER_OR_REPO [--revision R] [--deadline-s 120] [--message FILE]

Exit status 0 and a `plait.contract.verdict.Inspected` with `config`; 1 (2: wrong usage) and one with `error`.

Beware: a CPU engine stores KV as bfloat16, whatever type it computes in (`--dtype`).

Beware: a variable PLAIT_* that Plait does not know ends an engine at its start. Kubernetes gives pods
variables named after Services (PLAIT_SERVICE_HOST for one named `plait`): set `enableServiceLinks: false`.
"""
