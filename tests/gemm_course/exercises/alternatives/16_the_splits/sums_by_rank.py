# ruff: noqa
def plan_sends(ids, experts, ranks, exchange):
    """Places from running totals; the exchange comes first of all."""
    each = experts // ranks
    firsts = range(0, experts, each)
    goes = torch.stack([((ids >= first) & (ids < first + each)).any(1) for first in firsts], 1)
    received = exchange(goes.long().sum(0))
    places = goes.T.flatten().cumsum(0).view(ranks, -1).T - 1
    back = torch.where(goes, places, -1)
    rows = [(r, t) for r in range(ranks) for t in goes[:, r].nonzero().flatten().tolist()]
    local = [[e - r * each if e // each == r else -1 for e in ids[t].tolist()] for r, t in rows]
    return torch.tensor([t for _, t in rows], dtype=torch.int64), local, goes.sum(0), received, back
