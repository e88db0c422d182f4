"""Stored documents: what `read_document` and the readers above it do with damaged JSON."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from fuzzers.engine import Target
from fuzzers.mutation import Mutator
from waybill.archive.topic_settings import TopicSettings
from waybill.documents import read_document
from waybill.errors import WaybillError
from waybill.incidents.incident import IncidentBook
from waybill.shards.checkpoint import Checkpoint
from waybill.tables.progress import parse_progress
from waybill.watch.status import Status

_DAMAGED = (KeyError, TypeError, ValueError)
"""What `read_document` documents beside errors of Waybill, and what its callers turn into an error with a name."""

_READERS: list[Callable[[bytes], Any]] = []
