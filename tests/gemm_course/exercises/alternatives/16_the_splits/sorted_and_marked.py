# ruff: noqa
def plan_sends(ids, experts, ranks, exchange):
    """A stable sort of all choices by rank, without those that repeat one of the same token."""
    each, k = experts // ranks, ids.shape[1]
    rank = torch.where((ids >= 0) & (ids < experts), ids // each, ranks)
    earlier = torch.ones(k, k, dtype=torch.bool).tril(-1)
    again = ((rank[:, :, None] == rank[:, None, :]) & earlier).any(2)
    key = torch.where(again, ranks, rank).flatten()
    order = key.argsort(stable=True)
    order = order[key[order] < ranks]
    tokens, to = order // k, key[order]
    counts = exchange([int((to == r).sum()) for r in range(ranks)])
    back = [[-1] * ranks for _ in range(len(ids))]
    for row, (t, r) in enumerate(zip(tokens.tolist(), to.tolist())):
        back[t][r] = row
    local = torch.where(rank[tokens] == to[:, None], ids[tokens] - to[:, None] * each, -1)
    return tokens, local, [int((to == r).sum()) for r in range(ranks)], counts, back
