"""Seeded fuzzers over every decoder, parser, config, URL and web input: `make fuzz`.

| module | what it owns |
|---|---|
| `engine` | a target, the run of a target, and what it found |
| `mutation` | changed inputs from a corpus |
| `shrink` | the smallest input with the same failure |
| `worst` | for each decoder the message that costs most for its size: the growth test and `bench/growth.py` |
| `targets/` | one module for each subject; each target names its oracle |
| `__main__` | the command line |

docs/fuzzing.md says how to read a finding and how to write a target.
"""
