"""The coordinator's own objects: how they are put into the store and read back, checked.

Equal content gives equal bytes, and so an equal key: putting an object twice, or by two
coordinators in turn, does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from torch import Tensor

from ddl.codec.fragment import (
    Fragment,
    decode_fragment,
    decode_outer,
    encode_fragment,
    encode_outer,
    version_metadata,
)
from ddl.codec.frame import Buffer
from ddl.codec.payload import Encoded
from ddl.codec.step import encode_step, take_step
from ddl.config import Settings
from ddl.core.log import FragmentHead
from ddl.errors import MissingObjectError, ObjectNotFoundError
from ddl.merge.step import Merged
from ddl.protocol.keys import ObjectKeys
from ddl.protocol.records import FragmentStep, Layout, ObjectRef, RunRecord, TensorSpec
from ddl.store.base import Store
from ddl.store.hashed import get_checked

Put: TypeAlias = Callable[[ObjectRef, Buffer], None]
"""Takes an object that belongs to a version."""


class Base(NamedTuple):
    """What a merge starts from: fp32 master and momentum of each parameter of a fragment.

    `momentum` None stands for zero. `published` are the weights as learners hold them, fp32; None
    where nothing is made of them: they matter only when versions are published as steps. The
    tensors are not to be written to.
    """

    master: Mapping[str, Tensor]
    momentum: Mapping[str, Tensor] | None
    published: Mapping[str, Tensor] | None = None


class Made(NamedTuple):
    """A version: what the log is to say of it, and what the next merge starts from."""

    step: FragmentStep
    base: Base


class Payloads:
    """Objects of one run. Every method may raise StoreError.

    Args:
        store: where the run lies.
        run: its name.
        layout: its model.
        settings: in which type weights are published, and whether as steps.
    """

    def __init__(self, store: Store, run: str, layout: Layout, settings: Settings) -> None:
        self._store = store
        self._keys = ObjectKeys(run)
        self._layout = layout
        self._dtype = settings.fragments.publish_dtype
        self._by_steps = settings.codec.down == "int4-step"

    @classmethod
    def of(cls, store: Store, run: RunRecord) -> Payloads:
        """The objects of a run that is there."""
        return cls(store, run.name, run.layout, run.settings)

    def specs(self, fragment: int) -> Sequence[TensorSpec]:
        """The tensors of one fragment."""
        return self._layout.by_fragment[fragment]

    # ---- versions ---------------------------------------------------------------------------

    def put_fragment(
        self,
        fragment: int,
        version: int,
        weights: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
    ) -> ObjectRef:
        """Publish a version that no merge has made: fp32 weights, buffers in their own types.

        Raises: TaskError: values that are not finite; the tensor is named.
        """
        encoded = self._encode_fragment(fragment, version, weights, buffers)
        return _hand_over(self._keys.fragment(fragment, version, encoded.sha256), encoded, self.put)

    def make(self, fragment: int, base: Base, before: int, merged: Merged, put: Put) -> Made:
        """Make all objects of the version that a merge leads to, each handed to `put` as soon as
        it is written; none before all values are known to be finite.

        Args:
            base: what the merge started from; `before` is its version.
        Raises: TaskError: values that are not finite; the tensor is named.
        """
        version = before + 1
        step, published, weights = self._publish(fragment, version, base, merged, put)
        after = Base(merged.master, merged.momentum, weights)
        record = FragmentStep(
            fragment=fragment,
            version_before=before,
            version_after=version,
            published=published,
            outer=self._make_outer(fragment, version, after, put),
            step=step,
        )
        return Made(record, after)

    def _publish(
        self, fragment: int, version: int, base: Base, merged: Merged, put: Put
    ) -> tuple[ObjectRef | None, ObjectRef, Mapping[str, Tensor] | None]:
        """The step object, the fragment, and its weights as they are read back; the first and the
        last only where versions are steps."""
        keys, specs = self._keys, self.specs(fragment)
        if base.published is None:
            encoded = self._encode_fragment(fragment, version, merged.master, merged.buffers)
            key = keys.fragment(fragment, version, encoded.sha256)
            return None, _hand_over(key, encoded, put), None
        metadata = version_metadata("step", keys.run, fragment, version)
        step = encode_step(specs, merged.master, base.published, merged.buffers, metadata)
        weights = take_step(base.published, step.decoded)
        encoded = self._encode_fragment(fragment, version, weights, merged.buffers)
        return (
            _hand_over(keys.step(fragment, version, step.sha256), step, put),
            _hand_over(keys.fragment(fragment, version, encoded.sha256), encoded, put),
            {name: coded.whole() for name, coded in encoded.decoded.items()},
        )

    def _make_outer(self, fragment: int, version: int, after: Base, put: Put) -> ObjectRef:
        assert after.momentum is not None, "after a merge there is momentum"
        metadata = version_metadata("outer", self._keys.run, fragment, version)
        master = after.master if self._keeps_master else None
        encoded = encode_outer(self.specs(fragment), after.momentum, master, metadata)
        return _hand_over(self._keys.outer(fragment, version, encoded.sha256), encoded, put)

    def _encode_fragment(
        self,
        fragment: int,
        version: int,
        weights: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
    ) -> Encoded:
        metadata = version_metadata("fragment", self._keys.run, fragment, version)
        return encode_fragment(self.specs(fragment), weights, buffers, self._dtype, metadata)

    def fragment(self, fragment: int, ref: ObjectRef) -> Fragment:
        """Read one published version. Raises: IntegrityError."""
        return decode_fragment(self.read(ref), self.specs(fragment), self._dtype)

    def base(self, fragment: int, head: FragmentHead) -> Base:
        """Read what the next merge of a fragment starts from. Raises: IntegrityError."""
        outer = None
        if head.outer is not None:
            data = self.read(head.outer)
            outer = decode_outer(data, self.specs(fragment), master=self._keeps_master)
        momentum = outer.momentum if outer is not None else None
        master = outer.master if outer is not None else None
        if master is not None and not self._by_steps:
            return Base(master, momentum)
        weights = self.fragment(fragment, head.published).weights
        return Base(master or weights, momentum, weights if self._by_steps else None)

    @property
    def _keeps_master(self) -> bool:
        """Whether published weights differ from the master, which is then stored beside momentum."""
        return self._by_steps or self._dtype != "float32"

    # ---- any object -------------------------------------------------------------------------

    def read(self, ref: ObjectRef) -> bytearray:
        """Read an object that a record names. Raises: MissingObjectError; IntegrityError: changed."""
        try:
            return get_checked(self._store, ref)
        except ObjectNotFoundError as error:
            raise MissingObjectError(
                f"{ref.key} is missing in the store, but a record names it",
                hint="Restore it from a copy of the store; nothing can stand in for it",
            ) from error

    def put(self, ref: ObjectRef, data: Buffer) -> None:
        """Store an object under its name."""
        self._store.put(ref.key, data)


def _hand_over(key: str, encoded: Encoded, put: Put) -> ObjectRef:
    ref = ObjectRef(key=key, bytes=len(encoded.buffer), sha256=encoded.sha256)
    put(ref, encoded.buffer)
    return ref
