"""S3: create-if-absent, streamed uploads, listings.

What the protocol relies on: S3 decides, atomically, whether an object of a name exists (`If-None-Match: *` on
PutObject and on CompleteMultipartUpload), and a listing shows every object whose creation was acknowledged before it
began. Both hold on Amazon S3, and must hold on a store that stands in for it.

What it survives: an answer that never arrives. Calls are retried, so a create may be refused because its own first try
succeeded; `ObjectAlreadyThere` therefore says that *somebody* created the object, and the caller adopts what is there.
"""

from waybill.store.objects import Chain, Description, ListedObject, ObjectStream, PendingUpload, StoredObject
from waybill.store.store import GAP_BYTES, Store
from waybill.store.upload import PART_BYTES, Upload

__all__ = [
    "GAP_BYTES",
    "PART_BYTES",
    "Chain",
    "Description",
    "ListedObject",
    "ObjectStream",
    "PendingUpload",
    "Store",
    "StoredObject",
    "Upload",
]
