# ruff: noqa
# check: undone
# says: the order within a block is wrong: the first packs of its 16 rows
def undo_shuffle(shuffled):
    """The weight (N, K) or (G, N, K) whose shuffle this is."""
    pack = 16 // shuffled.element_size()
    n, k = shuffled.shape[-2:]
    parts = shuffled.view(-1, n // 16, k // 32, 16, 32 // pack, pack)
    return parts.permute(0, 1, 3, 2, 4, 5).reshape(shuffled.shape)
