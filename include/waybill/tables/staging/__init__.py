"""Stage data files, record them, and commit them: code that partition, dedup and quarantine share.

`driver` is the order of the steps. `file_writer` writes rows to data files, `uploads` sends these to S3, `table_layout`
describes them for the manifest, `file_reader` reads rows of committed files. `services` opens S3, the catalog and
ZooKeeper once for several streams.
"""
