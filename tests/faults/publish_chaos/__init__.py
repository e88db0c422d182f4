"""Random histories of runs, holds and decisions about one stream, compared with the states that the decisions allow."""
