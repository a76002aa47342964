# ruff: noqa
def plan_sends(ids, experts, ranks, exchange):
    each = experts // ranks
    tokens, local, sent = [], [], []
    back = [[-1] * ranks for _ in ids]
    for r in range(ranks):
        before = len(tokens)
        for t, line in enumerate(ids.tolist()):
            here = [e - r * each if r * each <= e < (r + 1) * each else -1 for e in line]
            if max(here) >= 0:
                back[t][r] = len(tokens)
                tokens.append(t)
                local.append(here)
        sent.append(len(tokens) - before)
    return tokens, local, sent, exchange(sent).tolist(), back
