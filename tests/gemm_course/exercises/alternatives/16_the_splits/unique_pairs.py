# ruff: noqa
def plan_sends(ids, experts, ranks, exchange):
    each, (count, k) = experts // ranks, ids.shape
    known = (ids >= 0) & (ids < experts)
    rank = torch.where(known, ids // each, -1)
    pairs = (rank * count + torch.arange(count)[:, None])[known].unique()
    to, tokens = (pairs // count, pairs % count) if count else (pairs, pairs)
    sent = torch.bincount(to, minlength=ranks)
    every = [exchange(sent)]
    back = torch.full((count * ranks,), -1)
    back[tokens * ranks + to] = torch.arange(len(pairs))
    local = torch.stack([torch.where(rank[tokens, j] == to, ids[tokens, j] % each, -1) for j in range(k)], 1)
    return tokens, local, sent, every[0], back.view(count, ranks)
