# ruff: noqa
# check: undone
# says: this is shuffled once more. The shuffle does not undo itself
def undo_shuffle(shuffled):
    """The weight (N, K) or (G, N, K) whose shuffle this is."""
    pack = 16 // shuffled.element_size()
    n, k = shuffled.shape[-2:]
    parts = shuffled.view(-1, n // 16, 16, k // 32, 32 // pack, pack)
    return parts.permute(0, 1, 3, 4, 2, 5).reshape(shuffled.shape)
