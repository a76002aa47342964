# ruff: noqa
# check: kept
# says: the argument was changed: return a new tensor
def undo_shuffle(shuffled):
    """The weight (N, K) or (G, N, K) whose shuffle this is."""
    pack = 16 // shuffled.element_size()
    n, k = shuffled.shape[-2:]
    parts = shuffled.view(-1, n // 16, k // 32, 32 // pack, 16, pack)
    return shuffled.copy_(parts.permute(0, 1, 4, 2, 3, 5).reshape(shuffled.shape))
