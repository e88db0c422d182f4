"""Random histories of runs, holds and decisions about one stream, compared with what the decisions allow."""
