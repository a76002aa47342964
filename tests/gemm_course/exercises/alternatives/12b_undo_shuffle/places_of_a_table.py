# ruff: noqa
def undo_shuffle(shuffled):
    n, k = shuffled.shape[-2:]
    pack = 16 // shuffled.element_size()
    at = torch.arange(n * k, device=shuffled.device)
    element, rest = at % pack, at // pack
    row, rest = rest % 16, rest // 16
    which, rest = rest % (32 // pack), rest // (32 // pack)
    block_k, block_n = rest % (k // 32), rest // (k // 32)
    home = (block_n * 16 + row) * k + block_k * 32 + which * pack + element
    out = torch.empty_like(shuffled).view(-1, n * k)
    out[:, home] = shuffled.view(-1, n * k)
    return out.view_as(shuffled)
