# ruff: noqa
# check: undone
# says: the dimensions are now blocks along N, rows, packs, blocks along K; in the weight they are
def undo_shuffle(shuffled):
    """The weight (N, K) or (G, N, K) whose shuffle this is."""
    pack = 16 // shuffled.element_size()
    n, k = shuffled.shape[-2:]
    parts = shuffled.view(-1, n // 16, k // 32, 32 // pack, 16, pack)
    return parts.permute(0, 1, 4, 3, 2, 5).reshape(shuffled.shape)
