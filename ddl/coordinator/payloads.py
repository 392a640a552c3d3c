"""The coordinator's own objects: how they are put into the store and read back, checked.

Equal content gives equal bytes, and so an equal key: putting an object twice, or by two
coordinators in turn, does no harm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from ddl.codec.digest import sha256
from ddl.codec.fragment import (
    Fragment,
    PublishDtype,
    decode_fragment,
    decode_outer,
    encode_fragment,
    encode_outer,
)
from ddl.codec.frame import Buffer
from ddl.codec.payload import Encoded
from ddl.core.log import FragmentHead
from ddl.errors import IntegrityError, ObjectNotFoundError
from ddl.protocol.keys import ObjectKeys
from ddl.protocol.records import Layout, ObjectRef, RunRecord, TensorSpec
from ddl.protocol.wire import SCHEMA, canonical
from ddl.store.base import Store


class Base(NamedTuple):
    """What a merge starts from: fp32 master and momentum of each parameter of a fragment.

    `momentum` None stands for zero. The tensors are not to be written to.
    """

    master: Mapping[str, Tensor]
    momentum: Mapping[str, Tensor] | None


class Payloads:
    """Objects of one run. Every method may raise StoreError.

    Args:
        store: where the run lies.
        run: its name.
        layout: its model.
        dtype: in which weights are published.
    """

    def __init__(self, store: Store, run: str, layout: Layout, dtype: PublishDtype) -> None:
        self._store = store
        self._keys = ObjectKeys(run)
        self._layout = layout
        self._dtype: PublishDtype = dtype

    @classmethod
    def of(cls, store: Store, run: RunRecord) -> Payloads:
        """The objects of a run that is there."""
        return cls(store, run.name, run.layout, run.settings.fragments.publish_dtype)

    def specs(self, fragment: int) -> Sequence[TensorSpec]:
        """The tensors of one fragment."""
        return self._layout.by_fragment[fragment]

    # ---- published weights ------------------------------------------------------------------

    def put_fragment(
        self,
        fragment: int,
        version: int,
        weights: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
    ) -> ObjectRef:
        """Publish one version: fp32 weights and buffers in their own types.

        Raises: TaskError: values that are not finite; the tensor is named.
        """
        return self._put(*self.encode_fragment(fragment, version, weights, buffers))

    def encode_fragment(
        self,
        fragment: int,
        version: int,
        weights: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
    ) -> tuple[ObjectRef, Buffer]:
        """What `put_fragment` would put, and under which name. Raises: TaskError."""
        metadata = self._metadata("fragment", fragment, version)
        specs = self.specs(fragment)
        encoded = encode_fragment(specs, weights, buffers, self._dtype, metadata)
        return _named(self._keys.fragment(fragment, version, encoded.sha256), encoded)

    def fragment(self, fragment: int, ref: ObjectRef) -> Fragment:
        """Read one version. Raises: IntegrityError."""
        return decode_fragment(self.read(ref), self.specs(fragment), self._dtype)

    # ---- outer state ------------------------------------------------------------------------

    @property
    def keeps_master(self) -> bool:
        """Whether published weights are rounded, so that the master is stored beside them."""
        return self._dtype != "float32"

    def put_outer(self, fragment: int, version: int, base: Base) -> ObjectRef:
        """Store the outer state that belongs to a version."""
        return self._put(*self.encode_outer(fragment, version, base))

    def encode_outer(self, fragment: int, version: int, base: Base) -> tuple[ObjectRef, Buffer]:
        """What `put_outer` would put, and under which name."""
        assert base.momentum is not None, "after a step there is momentum"
        metadata = self._metadata("outer", fragment, version)
        master = base.master if self.keeps_master else None
        encoded = encode_outer(self.specs(fragment), base.momentum, master, metadata)
        return _named(self._keys.outer(fragment, version, encoded.sha256), encoded)

    def base(self, fragment: int, head: FragmentHead) -> Base:
        """Read what the next merge of a fragment starts from. Raises: IntegrityError."""
        outer = None
        if head.outer is not None:
            outer = decode_outer(
                self.read(head.outer), self.specs(fragment), master=self.keeps_master
            )
        if outer is not None and outer.master is not None:
            return Base(outer.master, outer.momentum)
        weights = self.fragment(fragment, head.published).weights
        return Base(weights, outer.momentum if outer is not None else None)

    # ---- any object -------------------------------------------------------------------------

    def read(self, ref: ObjectRef) -> bytearray:
        """Read an object that a record names. Raises: IntegrityError: missing or changed."""
        try:
            data = self._store.get(ref.key)
        except ObjectNotFoundError as error:
            raise IntegrityError(
                f"{ref.key} is missing in the store, but a record names it",
                hint="Restore it from a copy of the store; nothing can stand in for it",
            ) from error
        found = sha256(data)
        if (len(data), found) != (ref.bytes, ref.sha256):
            raise IntegrityError(
                f"{ref.key} is damaged: {len(data)} bytes with SHA-256 {found[:16]}..., "
                f"recorded are {ref.bytes} bytes with {ref.sha256[:16]}...",
                hint="Restore it from a copy of the store",
            )
        return data

    def _put(self, ref: ObjectRef, data: Buffer) -> ObjectRef:
        self._store.put(ref.key, data)
        return ref

    def _metadata(self, kind: str, fragment: int, version: int) -> bytes:
        return canonical(
            {
                "schema": SCHEMA,
                "kind": kind,
                "run": self._keys.run,
                "fragment": fragment,
                "version": version,
            }
        )


def _named(key: str, encoded: Encoded) -> tuple[ObjectRef, Buffer]:
    ref = ObjectRef(key=key, bytes=len(encoded.buffer), sha256=encoded.sha256)
    return ref, encoded.buffer
