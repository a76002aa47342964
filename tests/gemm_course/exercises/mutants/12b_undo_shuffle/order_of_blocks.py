# ruff: noqa
# check: undone
# says: blocks come in the wrong order: all blocks of the same 16 rows
def undo_shuffle(shuffled):
    """The weight (N, K) or (G, N, K) whose shuffle this is."""
    pack = 16 // shuffled.element_size()
    n, k = shuffled.shape[-2:]
    parts = shuffled.view(-1, k // 32, n // 16, 32 // pack, 16, pack)
    return parts.permute(0, 2, 4, 1, 3, 5).reshape(shuffled.shape)
