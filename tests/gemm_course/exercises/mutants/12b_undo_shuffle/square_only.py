# ruff: noqa
# check: shapes
# says: N and K changed places: the weight has \d+ × \d+ blocks
def undo_shuffle(shuffled):
    """The weight (N, K) or (G, N, K) whose shuffle this is."""
    pack = 16 // shuffled.element_size()
    k, n = shuffled.shape[-2:]
    parts = shuffled.view(-1, n // 16, k // 32, 32 // pack, 16, pack)
    return parts.permute(0, 1, 4, 2, 3, 5).reshape(shuffled.shape)
