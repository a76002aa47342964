# ruff: noqa
# check: bytes
# says: packs of 8 elements were moved: a pack has 16 bytes, and these elements have 1
def undo_shuffle(shuffled):
    """The weight (N, K) or (G, N, K) whose shuffle this is."""
    pack = 8
    n, k = shuffled.shape[-2:]
    parts = shuffled.view(-1, n // 16, k // 32, 32 // pack, 16, pack)
    return parts.permute(0, 1, 4, 2, 3, 5).reshape(shuffled.shape)
