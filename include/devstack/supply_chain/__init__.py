"""The supply chain: what is locked, which advisories concern it, and the digests of images.

    python -m devstack.supply_chain audit            # make audit
    python -m devstack.supply_chain audit --update   # make audit-update
    python -m devstack.supply_chain lock-images      # make lock-images

docs/supply-chain.md describes it.

- `locks`: the packages and jars that the locks name.
- `advisories`: known vulnerabilities, from the stored file, and whether they concern a version; `osv`: from OSV.
- `acceptances`: the advisories that are accepted, by whom, why and until when.
- `audit`: compares them, and reports; `images`: writes the digests of images into the files that name them.
"""
