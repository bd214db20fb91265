"""What the operator knows of the cluster. Thread safe, and small: children are held as compressed JSON."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Set
from typing import Any, NamedTuple

from plait_operator.apply.kinds import DEPLOYMENT, POD, Kind
from plait_operator.controller.packing import Children, pack, unpack
from plait_operator.controller.podfact import is_held, pod_fact
from plait_operator.names import INSTANCE
from plait_operator.observed import Manifest, PodFact, Ref, RouterFact


class Key(NamedTuple):
    """Names a deployment: what the queue holds."""

    namespace: str
    name: str


class Snapshot(NamedTuple):
    """One deployment with its surroundings, as of one moment.

    `children`: those that it owns, by its uid: what an earlier deployment of that name has left is not among
    them. `pods`: by label, for they are not its own children but its workloads'; those that
    no controller of such holds are not among them. `strays`, `fits`: see `Observed`; give `fits` back by
    `Store.keep`.
    """

    body: Manifest
    children: Children
    pods: tuple[PodFact, ...]
    routers: tuple[RouterFact, ...]
    fits: dict[Ref, str]
    strays: frozenset[Ref] = frozenset()


class _Held(NamedTuple):
    packed: bytes
    version: int
    uid: str
    owner: str
    fits: str = ""
    """Digest of the manifest that this very state was found to fit; it goes with the state."""


class _Pod(NamedTuple):
    fact: PodFact
    version: int
    is_held: bool
    """By a controller. One that is not is shown to nobody, but kept: an older version may still come."""


class _Asked(NamedTuple):
    facts: tuple[RouterFact, ...]
    at: float


class Changed(NamedTuple):
    """What a list showed that no event had told. `lost`: objects that are gone."""

    keys: set[Key]
    lost: int


class Store:
    """Objects by deployment. An older version never replaces a newer one.

    Both the watches and the answers to writes come in here. What a watch told counts up to the version that
    it has reached: an answer from before that, about an object that is not here, is about one that is gone.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bodies: dict[Key, _Held] = {}
        self._children: dict[Key, dict[Ref, _Held]] = {}
        self._pods: dict[Key, dict[str, _Pod]] = {}
        self._routers: dict[Key, _Asked] = {}
        self._reached: dict[tuple[str, str], int] = {}

    # Deployments.

    def put_deployment(self, body: Manifest) -> Key | None:
        """The key, or None where something newer is known."""
        key = _key(body)
        with self._lock:
            held = self._bodies.get(key)
            if held is not None and held.version > _version(body):
                return None
            if held is not None and held.version == _version(body):
                return key
            self._bodies[key] = _packed(body)
        return key

    def knows(self, body: Mapping[str, Any]) -> bool:
        """Whether this state of a deployment, or a newer one, is here."""
        with self._lock:
            held = self._bodies.get(_key(body))
            return held is not None and held.version >= _version(body)

    def drop_deployment(self, key: Key, *, uid: str = "") -> None:
        """It is gone. With `uid`: only that one."""
        with self._lock:
            held = self._bodies.get(key)
            if held is not None and uid in ("", held.uid):
                del self._bodies[key]
                self._routers.pop(key, None)

    def deployments(self) -> list[Key]:
        """All of them."""
        with self._lock:
            return list(self._bodies)

    # Children and pods.

    def put(self, thing: Manifest) -> Key | None:
        """A child or pod, as a watch tells it. The key of its deployment; None: nothing new, or not ours."""
        key = owner_key(thing)
        if key is None:
            return None
        with self._lock:
            return key if self._put(key, thing) else None

    def drop(self, thing: Manifest) -> Key | None:
        """A child or a pod is gone (or has lost the label that the watch selects by)."""
        key = owner_key(thing)
        if key is None:
            return None
        with self._lock:
            if thing["kind"] == POD.kind:
                return key if self._forget_pod(key, thing["metadata"]["name"], _uid(thing)) else None
            return key if self._forget_child(key, Ref.of(thing), _uid(thing)) else None

    def retain(self, kind: Kind, namespace: str, seen: Set[tuple[Key, str]], *, version: int) -> Changed:
        """Forget the objects of a kind (of a namespace; empty: of all) that a list of `version` did not show.

        `seen`: deployment and name of each that it did show. What is newer than the list stays.
        """
        keys: set[Key] = set()
        lost = 0
        with self._lock:
            for key in list(self._pods if kind is POD else self._children):
                if namespace in ("", key.namespace):
                    gone = self._unseen(kind, key, seen, before=version)
                    lost += gone
                    if gone:
                        keys.add(key)
        return Changed(keys, lost)

    def reached(self, kind: Kind, namespace: str, version: int) -> None:
        """The watch of `kind` (in `namespace`; empty: in all) has told everything up to `version`."""
        with self._lock:
            self._reached[kind.kind, namespace] = version

    # What writes answer (apply.applier.Memory).

    def took(self, live: Manifest) -> None:
        """The answer to a write."""
        if (live.get("apiVersion"), live.get("kind")) == (DEPLOYMENT.api_version, DEPLOYMENT.kind):
            if live["metadata"].get("deletionTimestamp") and not live["metadata"].get("finalizers"):
                self.drop_deployment(_key(live), uid=_uid(live))
            else:
                self._took_deployment(live)
            return
        key = owner_key(live)
        if key is None:
            return
        with self._lock:
            told = max(
                self._reached.get((live["kind"], ""), 0),
                self._reached.get((live["kind"], key.namespace), 0),
            )
            if _version(live) > told or self._holds(key, live):
                self._put(key, live)

    def went(self, namespace: str, ref: Ref, uid: str) -> None:
        """A delete that was carried out."""
        with self._lock:
            for key, held in self._children.items():
                if key.namespace == namespace and ref in held and held[ref].uid == uid:
                    self._forget_child(key, ref, uid)
                    return

    # Routers.

    def put_routers(self, key: Key, facts: tuple[RouterFact, ...]) -> None:
        """What the routers of a deployment said just now."""
        with self._lock:
            if key in self._bodies:
                self._routers[key] = _Asked(facts, time.monotonic())

    def routers(self, key: Key) -> tuple[RouterFact, ...]:
        """What they said the last time, with its age."""
        with self._lock:
            return self._aged(key)

    def pods(self, key: Key) -> tuple[PodFact, ...]:
        """The pods of a deployment that a controller holds, by name."""
        with self._lock:
            return self._facts(key)

    # All at once.

    def view(self, key: Key) -> Snapshot | None:
        """A deployment and what is known around it; None when there is no such deployment."""
        with self._lock:
            held = self._bodies.get(key)
            if held is None:
                return None
            there = self._children.get(key, {})
            own = {ref: child for ref, child in there.items() if child.owner == held.uid}
            strays = frozenset(ref for ref, child in there.items() if not child.owner)
            pods = self._facts(key)
            routers = self._aged(key)
        # Unpacking is the slow part, and needs no lock.
        children = Children({ref: own[ref].packed for ref in sorted(own)})
        fits = {ref: child.fits for ref, child in own.items() if child.fits}
        return Snapshot(unpack(held.packed), children, pods, routers, fits, strays)

    def keep(self, key: Key, snapshot: Snapshot) -> None:
        """What a look has found out about children is true for as long as they stay as they were then."""
        with self._lock:
            children = self._children.get(key, {})
            for ref, digest in snapshot.fits.items():
                held = children.get(ref)
                # The very bytes that were looked at, and not just an equal version.
                if held is not None and held.packed is snapshot.children.packed(ref) and held.fits != digest:
                    children[ref] = held._replace(fits=digest)

    def doubt(self, key: Key) -> None:
        """Whatever was found out about a deployment's children is to be found out again."""
        with self._lock:
            children = self._children.get(key, {})
            for ref, held in children.items():
                if held.fits:
                    children[ref] = held._replace(fits="")

    def counts(self) -> dict[str, int]:
        """How many objects of each kind are held."""
        with self._lock:
            counts = {DEPLOYMENT.kind: len(self._bodies), POD.kind: sum(map(len, self._pods.values()))}
            for held in self._children.values():
                for ref in held:
                    counts[ref.kind] = counts.get(ref.kind, 0) + 1
        return counts

    # Under the lock.

    def _put(self, key: Key, thing: Manifest) -> bool:
        version = _version(thing)
        if thing["kind"] == POD.kind:
            pods = self._pods.setdefault(key, {})
            name = thing["metadata"]["name"]
            old = pods.get(name)
            if old is not None and old.version >= version:
                return False
            new = pods[name] = _Pod(pod_fact(thing), version, is_held(thing))
            # Else it is a heartbeat of the kubelet, or a field that no plan looks at.
            return _shown(old) != _shown(new)
        children = self._children.setdefault(key, {})
        ref = Ref.of(thing)
        held = children.get(ref)
        if held is not None and held.version >= version:
            return False
        children[ref] = _packed(thing)
        return True

    def _holds(self, key: Key, thing: Mapping[str, Any]) -> bool:
        if thing["kind"] == POD.kind:
            return thing["metadata"]["name"] in self._pods.get(key, {})
        return Ref.of(thing) in self._children.get(key, {})

    def _forget_child(self, key: Key, ref: Ref, uid: str) -> bool:
        children = self._children.get(key, {})
        held = children.get(ref)
        if held is None or held.uid != uid:
            return False
        del children[ref]
        if not children:
            del self._children[key]
        return True

    def _forget_pod(self, key: Key, name: str, uid: str) -> bool:
        pods = self._pods.get(key, {})
        held = pods.get(name)
        if held is None or held.fact.uid != uid:
            return False
        del pods[name]
        if not pods:
            del self._pods[key]
        return True

    def _unseen(self, kind: Kind, key: Key, seen: Set[tuple[Key, str]], *, before: int) -> int:
        """Forget what a list did not show, unless it is newer than the list."""
        if kind is POD:
            pods = self._pods.get(key, {})
            gone = [(n, p.fact.uid) for n, p in pods.items() if (key, n) not in seen and p.version <= before]
            return sum(self._forget_pod(key, name, uid) for name, uid in gone)
        children = self._children.get(key, {})
        lost = [
            (ref, held.uid)
            for ref, held in children.items()
            if (ref.api_version, ref.kind) == (kind.api_version, kind.kind)
            and (key, ref.name) not in seen
            and held.version <= before
        ]
        return sum(self._forget_child(key, ref, uid) for ref, uid in lost)

    def _facts(self, key: Key) -> tuple[PodFact, ...]:
        known = sorted(self._pods.get(key, {}).items())
        return tuple(fact for _, pod in known if (fact := _shown(pod)) is not None)

    def _aged(self, key: Key) -> tuple[RouterFact, ...]:
        asked = self._routers.get(key)
        if asked is None:
            return ()
        age = time.monotonic() - asked.at
        return tuple(fact._replace(age_s=fact.age_s + age) for fact in asked.facts)

    def _took_deployment(self, live: Manifest) -> None:
        # An answer may come after the watch told that the deployment is gone: only a known one is renewed.
        key = _key(live)
        with self._lock:
            held = self._bodies.get(key)
            if held is not None and held.uid == _uid(live) and held.version < _version(live):
                self._bodies[key] = _packed(live)


def _shown(pod: _Pod | None) -> PodFact | None:
    return pod.fact if pod is not None and pod.is_held else None


def _key(body: Mapping[str, Any]) -> Key:
    return Key(body["metadata"]["namespace"], body["metadata"]["name"])


def _uid(thing: Mapping[str, Any]) -> str:
    return str(thing["metadata"].get("uid", ""))


def _version(thing: Mapping[str, Any]) -> int:
    """Resource versions are numbers in one order for all objects (KEP-5504 makes that a promise)."""
    return int(thing["metadata"]["resourceVersion"])


def _owner(thing: Mapping[str, Any]) -> Mapping[str, Any]:
    owners = thing["metadata"].get("ownerReferences") or ()
    return next((o for o in owners if o.get("controller") and o.get("kind") == DEPLOYMENT.kind), {})


def owner_key(thing: Mapping[str, Any]) -> Key | None:
    """Of a child by its owner, which a person is less likely to edit than a label; of a pod by its label."""
    meta = thing["metadata"]
    name = _owner(thing).get("name") or (meta.get("labels") or {}).get(INSTANCE)
    return Key(meta["namespace"], name) if name and meta.get("namespace") else None


def _packed(thing: Manifest) -> _Held:
    return _Held(pack(thing), _version(thing), _uid(thing), str(_owner(thing).get("uid", "")))
