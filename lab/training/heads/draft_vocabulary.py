"""The ids that a head can draft: those that the target writes most often."""

import numpy as np

NONE = -1  # what cannot be drafted, in place of an id


def draft_ids(written: np.ndarray, vocabulary: int, most: int) -> np.ndarray:
    """int32, ascending: the `most` commonest of the ids `written`, or all of a smaller vocabulary."""
    counts = np.bincount(written, minlength=vocabulary)
    return np.sort(np.argsort(-counts, kind="stable")[:most]).astype(np.int32)


def places_of(ids: np.ndarray, vocabulary: int) -> np.ndarray:
    """[vocabulary]: the place of an id of the target among the draft `ids`, or NONE."""
    places = np.full(vocabulary, NONE, np.int64)
    places[ids] = np.arange(len(ids))
    return places
