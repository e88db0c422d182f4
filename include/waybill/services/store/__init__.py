"""S3: conditional creates, streamed uploads, listings, reads.

What the protocol relies on: S3 decides atomically whether an object of a key exists (`If-None-Match: *` on PutObject
and on CompleteMultipartUpload), and a listing shows every object whose creation was acknowledged before the listing
began. Both hold on Amazon S3, and must hold on every store that replaces it: `probe` tests this, and `fitness` stores
the result.

What it survives: an answer that never arrives. Calls are retried, so S3 may refuse a create because the first try
succeeded. `ObjectExists` therefore does not show which task created the object, and the caller adopts it.
"""

from waybill.services.store.objects import ChainId, Description, ListedObject, ObjectStream, PendingUpload, StoredObject
from waybill.services.store.probe import Ability, AbilityFinding, ProbeResult
from waybill.services.store.store import COALESCE_BYTES, Store
from waybill.services.store.upload import PART_BYTES, Upload

__all__ = [
    "COALESCE_BYTES",
    "PART_BYTES",
    "Ability",
    "AbilityFinding",
    "ChainId",
    "Description",
    "ListedObject",
    "ObjectStream",
    "PendingUpload",
    "ProbeResult",
    "Store",
    "StoredObject",
    "Upload",
]
