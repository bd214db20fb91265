"""What goes into each image, and the archives that a node takes in."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.images import write_image
from tests.cluster.harness.python_image import Content, distributions, interpreter, site_packages, sources

ROOT: Final = Path(__file__).parents[3]
ENGINE: Final = Path(__file__).parent / "engine"
NOBODY: Final = "65532:65532"
HUB_MODEL: Final = "lab/tiny"
"""The one repository that the engine image's hub has."""
TINY: Final[dict[str, Any]] = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "num_hidden_layers": 3,
    "hidden_size": 256,
    "intermediate_size": 512,
    "moe_intermediate_size": 256,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "num_attention_heads": 8,
    "vocab_size": 512,
    "kv_lora_rank": 512,
    "q_lora_rank": 128,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "index_n_heads": 16,
    "index_head_dim": 128,
    "index_topk": 64,
    "max_position_embeddings": 8192,
    "dtype": "bfloat16",
    "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
}
"""config.json of a small model in GLM-5's shape."""
# Of what Plait requires: neither the control programs nor a pod's own load numpy, which is most of the bytes.
_CONTROL: Final = (
    "aiohttp",
    "cryptography",
    "fastapi",
    "httptools",
    "httpx",
    "jsonpatch",
    "kopf",
    "kubernetes",
    "orjson",
    "prometheus-client",
    "psutil",
    "pydantic",
    "pyyaml",
    "rich",
    "typer",
    "uvicorn",
    "uvloop",
    "xxhash",
)
_POD: Final = ("aiohttp", "orjson", "pydantic", "pyyaml")


class Names(NamedTuple):
    """Names of the images, as pods write them."""

    control: str = "localhost/plait-control:test"
    """Operator, admission and router: `python3 -m plait_operator …`, `python3 -m plait.cli router …`."""
    runtime: str = "localhost/plait-runtime:test"
    engine: str = "localhost/sglang-stub:0.5.17"
    engine_again: str = "localhost/sglang-stub:0.5.17-again"
    """The same under another name, for a change of image."""
    engine_other: str = "localhost/sglang-stub:0.5.16"
    """An engine of a version that Plait was not made for."""


NAMES: Final = Names()


# All in layers, the interpreter first, which is most of each image's bytes.


def control() -> list[Content]:
    """One image for all that is Plait's own on the control side."""
    return [interpreter(), distributions(_CONTROL), sources("plait", "plait_operator")]


def runtime(tree: Path) -> list[Content]:
    """The runtime image, as images/runtime/Dockerfile lays it out; `tree`: what tree.sh made."""
    inject = (ROOT / "images/runtime/inject.py").read_bytes()
    return [interpreter(), {"/opt/plait/site": tree, "/opt/plait/inject": inject}]


def engine(version: str = "0.5.17") -> list[Content]:
    """A stub engine's image, without Plait: that is injected."""
    site = site_packages()
    hub = f"/opt/hub/{HUB_MODEL}/config.json"
    own: Content = {f"{site}/{name}": content for name, content in stub(version).items()}
    return [interpreter(), distributions(_POD), own | {hub: json.dumps(TINY).encode()}]


def stub(version: str = "0.5.17") -> dict[str, bytes]:
    """The stub engine as an installed `sglang` of this version, by path relative to site-packages."""
    folder = f"sglang-{version}.dist-info"
    return {
        **{str(path.relative_to(ENGINE)): path.read_bytes() for path in sorted(ENGINE.rglob("*.py"))},
        f"{folder}/METADATA": f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n".encode(),
        f"{folder}/INSTALLER": b"test\n",
    }


def tree(out: Path) -> Path:
    """The injected tree, made by the image's own script."""
    command = [str(ROOT / "images/runtime/tree.sh"), str(out), sys.executable]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return out


def model(folder: Path) -> Path:
    """A model's folder with the small config; weights there are none."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(TINY))
    folder.chmod(0o755)
    return folder


_taken: set[tuple[Path, str]] = set()


def load(cluster: Cluster, *names: str) -> None:
    """Build these images (of NAMES), and have the cluster's node take them in: once for all suites."""
    folder = cluster.instance.run / "images"
    node = cluster.start_node()

    def take(name: str) -> None:
        archive = write(folder, name)
        node.take(archive)
        archive.unlink()

    missing = [name for name in names if (folder, name) not in _taken]
    # While a node unpacks one, the next is packed.
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(take, missing))
    _taken.update((folder, name) for name in missing)


def write(folder: Path, name: str) -> Path:
    """Write the archive of one image of NAMES into `folder`."""
    out = folder / f"{name.rpartition('/')[2].replace(':', '-')}.tar"
    quiet = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
    if name == NAMES.control:
        write_image(out, name, *control(), environment=quiet, user=NOBODY)
    elif name == NAMES.runtime:
        with tempfile.TemporaryDirectory() as work:
            content = runtime(tree(Path(work) / "site"))
            write_image(out, name, *content, environment=quiet, user=NOBODY, entrypoint=["/opt/plait/inject"])
    elif name in NAMES:
        # The version is the tag, up to a dash.
        write_image(out, name, *engine(name.rpartition(":")[2].partition("-")[0]), environment=quiet)
    else:
        raise ValueError(f"image {name!r}: one of {', '.join(NAMES)}")
    return out
