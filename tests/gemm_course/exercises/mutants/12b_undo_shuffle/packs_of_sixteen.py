# ruff: noqa
# check: undone
# says: packs of 16 elements were moved: a pack has 16 bytes, and these elements have 2
def undo_shuffle(shuffled):
    """The weight (N, K) or (G, N, K) whose shuffle this is."""
    pack = 16
    n, k = shuffled.shape[-2:]
    parts = shuffled.view(-1, n // 16, k // 32, 32 // pack, 16, pack)
    return parts.permute(0, 1, 4, 2, 3, 5).reshape(shuffled.shape)
