"""Policy `goodput`: what a step computes, and who drafts how much for each session. This is its derivation.

**What is maximised.** Expected committed tokens per second of all sessions, under the pace that each was promised.

**Arms** (rounds.py). A session is decoded, or its device drafts k tokens, or the server does, or both. A hint is an
order: a device drafts as many tokens as the latest one says, and 4 before the first. After a verdict a draft of k
tokens is away for A = delay + k * draft seconds, then waits w for a step of t seconds, which commits E(k) tokens
(hw_profiles/speculation.py, with the chances `first` and `later` that this session's drafts have shown; tokens that
were left out as unlikely count as their confidences say):

    share = t / (A + w + t)          of the steps that the session is in; 1 if the server decodes it
    rate  = E(k) * share / t         tokens/s

A verdict leaves when a step ends and the next one begins: a draft misses ceil(A / t) whole steps, and w = ceil(A / t) *
t - A as far as others keep the target busy. So a token more may cost a whole step, and exact lengths matter; ceil is
smoothed, for steps are not all equally long. A second draft of j tokens beside the first one adds

    apart * sum over i <= j of reach(i) * (1 - the first one's reach(i))

with reach(i), the chance that i tokens stand, and `apart` learned: two models of one target often agree.

**The step time** (assignment.py). There is a step if some session is in it: the chance of that is busy = 1 - product
of (1 - share). So a step computes share / busy * (k + 1) positions of each session and reads share / busy * context KV
positions: of one user all of them, of many the mean. Its seconds depend on the shares, and they on it: t = cost(sum of
all) is solved by iteration. The server's drafting adds one pass for each token of its longest draft. Steps with a piece
of a prompt are mixed in by frequency; no answer is beside the prompt of its own session.

**The assignment.** Candidates: all sessions have the same arm, for each arm; and each has the arm that is best for it
while the others stay (its response, to the present assignment and to the best of the former):

    gain = rate + promise - slowdown * share * seconds that its place adds to a step

`slowdown` = sum of rate * share / t, the tokens/s that all lose if steps become a second longer. A candidate is worth
the sum of its rates, plus PROMISE * pace for each session by the chance that it keeps its pace, less a margin: BETTER
times the present rate of each session whose device would draft less or more than now, OWN_BETTER for other changes. The
best one is taken, the present one included. That is all that keeps hints from flapping: while estimates stand still,
each change makes the worth larger, so that changes end.

**What came of it** (outcomes.py). The formulas know neither that one processor drafts for several sequences, nor that
the next text is harder. So E(k) of drafts is multiplied by what sessions with drafts have committed beside their rates,
over the same of the others.

**A new session** gets its response at once. Its estimates begin with what its device showed before, or else with the
mean of its tenant's devices, or with a guess (scheduler/estimates.py). What rests is probed: see probes.py.

**A step** (policy.py, step_budget.py) starts at once, or waits for drafts that are about to come if that saves more
session-seconds than it costs. Of the drafts that wait it verifies the tokens whose chance is above the price of a
position: the seconds that it adds, times the tokens/s that all sessions get. What does not fit waits in turn.

**Constants** were chosen against the simulated grid (docs/benchmarks/grid.json) and the policies' contract
(tests/policy_contract.py); the comment at each says what it trades, or the figure that set it.
"""
