# ruff: noqa
def plan_sends(ids, experts, ranks, exchange):
    """Any order of a rank's rows is right if results return to their tokens."""
    each = experts // ranks
    rank = torch.where((ids < 0) | (ids >= experts), ranks, ids.div(each, rounding_mode="floor"))
    goes = torch.zeros(len(ids), ranks + 1, dtype=torch.bool).scatter(1, rank, True)[:, :ranks]
    to, place = goes.flip(0).T.nonzero(as_tuple=True)
    tokens = len(ids) - 1 - place
    sent = tuple(int(n) for n in goes.sum(0))
    received = exchange(sent)
    local = ids[tokens] - to[:, None] * each
    local = local.masked_fill((local < 0) | (local >= each) | (rank[tokens] == ranks), -1)
    back = torch.full((len(ids), ranks), -1).index_put((tokens, to), torch.arange(len(tokens)))
    return [tokens.int(), local.int(), sent, received, back]
